"""Several nodes of one run: assembled, compared, controlled by the head. Changes when nodes join differently."""
