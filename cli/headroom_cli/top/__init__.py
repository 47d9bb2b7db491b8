"""`headroom top`: what a pool's pickers do now, as a live table."""
