"""Work that can wait: from a queue through the gateway into a result store."""
