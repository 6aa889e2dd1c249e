"""What will happen: pure arithmetic from Run, machine and data facts to a Plan. No I/O, no torch."""
