"""Changes of the code that a test must notice, and a run of all of them on private copies of the tree."""
