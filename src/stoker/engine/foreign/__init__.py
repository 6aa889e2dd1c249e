"""Files that run in another tool's environment. They import nothing of Stoker's and are found through PYTHONPATH."""
