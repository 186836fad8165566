"""What commands, the demo and the benchmarks print, and how a command ends."""
