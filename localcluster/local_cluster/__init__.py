"""A real Kubernetes control plane and a node that runs pods as host processes."""
