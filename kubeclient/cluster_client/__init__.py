"""The Kubernetes client side that the operator and the picker share: access, list-watch, facts of pods."""
