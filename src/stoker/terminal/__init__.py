"""Output for people: the only room that prints. Changes when output does."""
