"""Where it runs: local processes now; other places are added here."""
