"""Words in: every command and flag, and what the commands around a run do. Changes when a command does."""
