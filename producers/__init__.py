"""From rows to records in the forward logs: routing, encoding, sending, acknowledgements."""
