"""Keeps a training alive on its machine. Standard library only. Changes when a way to fail is added."""
