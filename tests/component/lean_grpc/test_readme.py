"""Runs the README's two programs; only the addresses are replaced."""

import re
import socket
import textwrap
from pathlib import Path
from typing import Any

README = Path(__file__).parents[3] / "transport" / "README.md"


async def test_the_programs_of_the_readme_work(capsys: Any) -> None:
    server, channel = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    channel = channel.replace('["10.0.0.1:50051", "10.0.0.2:50051"]', f'"127.0.0.1:{port}"')
    channel = channel.replace("            ...\n", "            assert payload == b'one'\n")
    program = server.replace("50051", port).replace("\n...\n", f"\n{channel}assert answer == b'cba'\n")
    assert "10.0.0" not in program
    scope: dict[str, Any] = {}
    exec(f"async def program():\n{textwrap.indent(program, '    ')}    return all_ended\n", scope)
    assert await scope["program"]() is True
    assert capsys.readouterr().out == ""
