"""What a node does with its logs: write-ahead log, store, replication, membership, queries, serving."""
