"""What a user imports and types."""
