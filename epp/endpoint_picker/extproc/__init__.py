"""The life of one request as ext-proc messages."""
