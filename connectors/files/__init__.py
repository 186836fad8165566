"""Durable file operations."""
