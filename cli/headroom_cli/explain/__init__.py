"""`headroom explain`, and the kubectl plugin `kubectl headroom explain`: why requests went where they did."""
