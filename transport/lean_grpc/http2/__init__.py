"""HTTP/2 (RFC 9113) as a sans-IO core for both roles: bytes in, calls on owners; calls in, bytes out.

Nothing here opens a socket, reads a clock or knows an event loop.
"""
