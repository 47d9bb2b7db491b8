"""The `headroom` command."""
