"""The replicated state machine over a forward log."""
