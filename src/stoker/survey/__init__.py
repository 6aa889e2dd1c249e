"""What is in the data before money is spent: sizes, languages, duplicates, leaks, contradictions. Pure."""
