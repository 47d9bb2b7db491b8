"""The endpoint picker: an Envoy ext-proc service that picks a model server for every request."""
