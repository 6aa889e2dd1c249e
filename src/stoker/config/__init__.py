"""What was asked: a YAML run file becomes a frozen `Run`. Changes when a word of the run file changes."""
