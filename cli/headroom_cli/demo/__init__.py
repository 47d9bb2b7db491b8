"""The demo: the main job on a local cluster, and the scenarios that prove it, shared with the tests."""
