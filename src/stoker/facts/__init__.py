"""Data, not code: cards, prices, platforms, model shapes, this machine, and their loaders."""
