"""Several nodes of one run: compared, assembled, told by the head what to do. Changes when nodes meet otherwise."""
