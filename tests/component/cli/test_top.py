"""`headroom top` in a terminal, on a picker process: frames until control-C; plain text elsewhere."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headroom_cli.demo.api import wait_for
from headroom_cli.picker_pages import PickerPageError, of_address

HOST = "127.0.0.1"
_ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture
def picker(tmp_path: Path) -> Iterator[str]:
    """The address of the metrics port of a picker process with flow control and two endpoints."""
    entries = [{"name": f"s{number}", "address": f"127.0.93.{number}", "port": 9} for number in (1, 2)]
    (tmp_path / "endpoints.json").write_text(json.dumps({"endpoints": entries}))
    (tmp_path / "config.yaml").write_text("featureGates: [flowControl]\n")
    probes = [socket.create_server((HOST, 0)) for _ in range(3)]
    ports = [str(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    grpc, health, metrics = ports
    command = [
        sys.executable, "-m", "endpoint_picker.main", "--pool-name=p", f"--bind-address={HOST}",
        f"--grpc-port={grpc}", f"--grpc-health-port={health}", f"--metrics-port={metrics}",
        f"--endpoints-file={tmp_path / 'endpoints.json'}", f"--config-file={tmp_path / 'config.yaml'}",
        "--drain-timeout=0s",
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    address = f"{HOST}:{metrics}"

    def answers() -> bool:
        assert process.poll() is None
        try:
            return bool(of_address(address).page("/debug/state", "router")["synced"])
        except PickerPageError:
            return False

    try:
        wait_for("the picker", answers, limit_s=60)
        yield address
    finally:
        process.kill()
        process.wait()


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *command: str) -> None:
        self._screen, end = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "50"}
        self.process = subprocess.Popen(
            command, stdin=end, stdout=end, stderr=end, env=environment, start_new_session=True
        )
        os.close(end)
        self._shown = b""

    def until(self, text: str, times: int = 1) -> None:
        """Read until the text has been shown so many times."""
        while _ESCAPE.sub(b"", self._shown).count(text.encode()) < times:
            self._shown += os.read(self._screen, 65536)  # the test's time limit ends a wait in vain

    def interrupt(self) -> int:
        """Send what control-C sends; return the exit status."""
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(timeout=60)
        os.close(self._screen)
        return status


@pytest.mark.timeout(180)
def test_frames_follow_each_other_until_control_c(picker: str) -> None:
    headroom = str(Path(sys.executable).parent / "headroom")
    terminal = Terminal(headroom, "top", "--address", picker, "--interval", "0.2")
    try:
        terminal.until("Queue by tenant", times=3)
        terminal.until("2 ready of 2")
        terminal.until("127.0.93.1:9")
        assert terminal.interrupt() == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()


@pytest.mark.timeout(180)
def test_without_a_terminal_one_frame_is_plain_text(picker: str) -> None:
    headroom = str(Path(sys.executable).parent / "headroom")
    done = subprocess.run(
        [headroom, "top", "--address", picker],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert "Endpoints    2 ready of 2" in lines
    assert "Queue        empty, 0.0 requests/s leave" in lines
    assert [line.split()[0] for line in lines if line.startswith("127.0.93.")] == [
        "127.0.93.1:9",
        "127.0.93.2:9",
    ]
