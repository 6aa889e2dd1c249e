"""Is this machine fit? Changes when a check is added."""
