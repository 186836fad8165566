"""Kafka clients, topics and the embedded broker."""
