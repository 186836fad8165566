"""Runs the drivers of queries: who runs next, for how long, who waits for what, and who is refused."""
