"""The API types of Headroom: one typed home for what is read from and written to a Kubernetes API server.

Imports no other package of the tree. Does no I/O, except that `crd` reads and writes the CRD files.
"""
