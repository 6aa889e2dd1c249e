"""What is made of a finished run and compared with it: quantised, served, benchmarked. Changes when a kind is added."""
