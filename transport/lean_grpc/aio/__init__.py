"""Thin asyncio shells over the sans-IO layers: server, channel, TLS, health. Sockets and clocks live here."""
