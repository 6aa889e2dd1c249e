"""From files to documents: rows of any layout in one form. No tokenizer, no torch."""
