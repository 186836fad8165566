"""Where Headrace meets the outside: Kafka, the log port, raw formats and durable files."""
