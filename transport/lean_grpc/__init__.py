"""gRPC over HTTP/2 for asyncio: a sans-IO core with thin client and server shells."""
