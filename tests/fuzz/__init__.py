"""Mutated inputs through every door of Headrace, in processes of their own."""
