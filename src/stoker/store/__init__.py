"""Committed copies elsewhere: where they can live, how they get there and back. Changes when a kind of store does."""
