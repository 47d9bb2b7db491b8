"""The summary of a program's log: its last lines, and no stack trace."""

from pathlib import Path

from local_cluster.processes import log_summary


def words_of(tmp_path: Path, *lines: str) -> str:
    log = tmp_path / "log"
    log.write_text("\n".join(lines))
    return log_summary(log)


def test_plain_lines_stay_unchanged(tmp_path: Path) -> None:
    assert words_of(tmp_path, "one", "two", "three", "four") == "two | three | four"


def test_a_panic_leaves_its_cause_without_the_stack(tmp_path: Path) -> None:
    said = words_of(
        tmp_path,
        '{"level":"warn","msg":"slow"}',
        '{"level":"panic","msg":"failed to create WAL","error":"no space left on device","stacktrace":"a"}',
        "panic: failed to create WAL",
        "",
        "goroutine 1 [running]:",
        "main.main()",
        "\tmain.go:11 +0x28",
    )
    assert said == "slow | failed to create WAL: no space left on device"


def test_a_panic_before_any_log_line_is_the_summary(tmp_path: Path) -> None:
    assert words_of(tmp_path, "panic: no flags", "goroutine 1 [running]:") == "panic: no flags"


def test_long_lines_are_cut_and_silence_is_named(tmp_path: Path) -> None:
    assert len(words_of(tmp_path, "x" * 5000)) < 400
    assert words_of(tmp_path) == "it logged nothing"
    assert log_summary(tmp_path / "absent") == "it logged nothing"
