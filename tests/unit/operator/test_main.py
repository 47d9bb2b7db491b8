import os
import resource
import subprocess
import sys

from inference_operator.main import raise_file_limit


def test_the_operator_may_open_as_many_files_as_the_hard_limit_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowered = min(256, before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowered, before[1]))
    try:
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_help_is_given_to_a_user_without_a_home() -> None:
    """An arbitrary user id in a container: HOME is not set, and the user database has no entry."""
    program = (
        "import pwd, sys\n"
        "def unknown(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = unknown\n"
        "sys.argv = ['headroom-operator', '--help']\n"
        "from inference_operator.entry import main\n"
        "main()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "HOME"}
    run = subprocess.run(
        [sys.executable, "-c", program], check=False, env=environment, capture_output=True, text=True
    )
    assert run.stderr == ""
    assert run.returncode == 0
    assert "--kubeconfig" in run.stdout
