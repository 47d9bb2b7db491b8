"""A node for one machine: binds pods and runs their containers as processes of the host."""
