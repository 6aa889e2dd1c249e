"""What will happen: pure decisions from Run, machine and data facts to a Plan. No I/O, no torch."""
