"""How things look to people: the only room that prints. Changes when output does."""
