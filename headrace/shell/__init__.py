"""The interactive shell of `headrace sql`."""
