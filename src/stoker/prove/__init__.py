"""What is claimed, tried on this machine in ten minutes. Changes when a check is added."""
