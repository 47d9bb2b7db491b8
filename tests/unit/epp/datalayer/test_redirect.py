"""Redirects that are followed, and those that are not."""

import pytest

from endpoint_picker.datalayer.redirect import followed


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        pytest.param("/metrics/", (8000, "/metrics/"), id="a path"),
        pytest.param("other?a=b#c", (8000, "/other?a=b"), id="relative, with query and fragment"),
        pytest.param("http://10.0.0.1:8000/metrics/", (8000, "/metrics/"), id="a URL"),
        pytest.param("http://10.0.0.1:8002/metrics", (8002, "/metrics"), id="another port"),
        pytest.param("http://10.0.0.1/metrics", (80, "/metrics"), id="the default port"),
        pytest.param("//10.0.0.1:8000/x", (8000, "/x"), id="without scheme"),
        pytest.param("http://10.0.0.1:8000", (8000, "/"), id="without path"),
        pytest.param("http://10.0.0.2:8000/metrics", None, id="another host"),
        pytest.param("//10.0.0.2:8000/metrics", None, id="another host, without scheme"),
        pytest.param("http://10.0.0.1@10.0.0.2/metrics", None, id="another host behind user information"),
        pytest.param("http://me@10.0.0.1:8000/metrics", None, id="user information"),
        pytest.param("https://10.0.0.1:8000/metrics", None, id="another scheme"),
        pytest.param("file:///etc/passwd", None, id="a file"),
        pytest.param("http://10.0.0.1:99999/", None, id="no port"),
        pytest.param("/a b", None, id="a space"),
        pytest.param("/a\r\nX: y", None, id="a line break"),
        pytest.param("/\u00e9", None, id="not ASCII"),
        pytest.param("/" + "x" * 2000, None, id="too long"),
        pytest.param("http://[::1", None, id="no URL"),
    ],
)
def test_a_location(location: str, expected: tuple[int, str] | None) -> None:
    assert followed(location, "http://10.0.0.1:8000/metrics") == expected


def test_an_ipv6_host_is_itself() -> None:
    asked = "http://[fd00::1]:8000/metrics"
    assert followed("http://[fd00::1]:8000/metrics/", asked) == (8000, "/metrics/")
    assert followed("http://[fd00::2]:8000/metrics/", asked) is None
