"""Request and response bodies of inference APIs: what routing needs from them, and nothing more. Pure."""
