"""Schemas, messages and framing: the words that topics and files are written in."""
