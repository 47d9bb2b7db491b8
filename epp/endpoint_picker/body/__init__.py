"""Request and response bodies: what a decision needs from them, and nothing more."""
