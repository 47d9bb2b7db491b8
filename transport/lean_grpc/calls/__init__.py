"""gRPC on the HTTP/2 core: messages, metadata, status, deadlines, compression. Sans-IO as well."""
