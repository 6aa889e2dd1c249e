"""Words in, words out: the only room that prints. Changes when a command or its output changes."""
