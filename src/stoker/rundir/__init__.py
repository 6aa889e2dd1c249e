"""What is on disk: layout, events, prepared data, committed checkpoints. Changes when the disk format does."""
