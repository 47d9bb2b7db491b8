"""The demo of the operator on a local cluster, and the scenarios that verify it, shared with the tests."""
