"""What is on disk: layout, manifest, events, prepared data, committed checkpoints. Changes when the disk format does."""
