"""Words in: every command and flag, and what each command does. Changes when a command does."""
