"""Where a run goes: box, fleet, queue, kernels, sky, bundle; one protocol. Changes when a place is added."""
