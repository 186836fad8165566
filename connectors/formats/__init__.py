"""Raw readings in users' formats, parsed as whole columns."""
