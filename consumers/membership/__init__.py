"""Ring, slots and the cut of rows into groups."""
