"""What is done with a finished model: merged, exported, judged, talked with, served. Changes when a way out does."""
