"""How gRPC streams reach the picker: the seam that handlers are written against, and its adapters."""
