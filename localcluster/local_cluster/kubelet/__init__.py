"""A node of the real programs (containerd, kubelet, kube-proxy, kube-scheduler) in namespaces of its own."""
