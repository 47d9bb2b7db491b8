"""The training server: takes samples, keeps them on disk, and runs a process that learns from them."""
