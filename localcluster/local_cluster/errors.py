"""Errors of a local cluster. The text of each is one line that says what to do."""


class LocalClusterError(Exception):
    """Base of every error of this package; its text can be shown to a user unchanged."""


class ToolMissingError(LocalClusterError):
    """A program that is needed (go, kubectl) is not on this machine, or is too old."""


class BuildError(LocalClusterError):
    """Building the control-plane binaries with Go did not work."""


class StartError(LocalClusterError):
    """A part of the cluster ended, or did not become ready in time."""


class NotRunningError(LocalClusterError):
    """No cluster runs in the given directory."""


class AlreadyRunningError(LocalClusterError):
    """A cluster runs in the given directory already."""


class NamespacesRefusedError(LocalClusterError):
    """This machine does not let a process make its own user and mount namespace."""
