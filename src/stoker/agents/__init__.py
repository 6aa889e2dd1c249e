"""Programs as users: the page and the tools for coding agents. Changes when what an agent may do does."""
