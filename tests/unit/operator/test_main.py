import resource

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
