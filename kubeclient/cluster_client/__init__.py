"""The Kubernetes client code that operator and picker share: access, list-watch, reading of pods."""
