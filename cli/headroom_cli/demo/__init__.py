"""The demo: the main job on a local cluster, and the scenarios that prove it (end-to-end tests run the same)."""
