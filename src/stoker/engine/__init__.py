"""THE ONLY ROOM WITH TORCH: programs started with a run directory, never imported by the rest of the house."""
