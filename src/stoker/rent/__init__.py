"""Which card, from whom, for how much: one run on every card of a market. Changes when what is advised does. Pure."""
