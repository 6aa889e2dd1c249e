"""Memory and time of a training step: closed-form arithmetic, no I/O, no torch. Changes when a rule does."""
