"""HTTP/2 (RFC 9113) as a sans-IO core for both roles.

Received bytes become calls on the owners of streams; calls of the owners become bytes to send.

Nothing here opens a socket, reads a clock or knows an event loop.
"""
