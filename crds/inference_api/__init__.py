"""The API types of Headroom: the typed form of all that is read from and written to a Kubernetes API server.

Imports no other package of the tree. Does no I/O, except that `crd` reads and writes the CRD files.
"""
