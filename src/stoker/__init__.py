"""Stoker: train, fine-tune and serve language models on rented or borrowed GPUs."""

__version__ = "0.1.0"
