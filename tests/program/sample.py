"""A sample program with one option of each kind, and helpers that parse command lines."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparq.options.declare import option
from sparq.options.kinds import BOOL, DURATION, INT, STRING, choice
from sparq.options.units import SECOND
from sparq.program.flags import parse
from sparq.program.logging import LEVEL

FATAL = re.compile(r"^\[prog\] [0-9/]{10} [0-9:.]{15} FATAL: ")


@dataclass(frozen=True, slots=True)
class Options:
    """One option of each kind."""

    tcp_address: str = option("0.0.0.0:1", "where; 100% sure", kind=STRING)
    deflate: bool = option(True, "compress", kind=BOOL)
    node_id: int | None = option(None, "number", kind=INT, key="id")
    msg_timeout_ns: int = option(60 * SECOND, "time", kind=DURATION, name="msg-timeout")
    lookupd: tuple[str, ...] = option((), "peers", kind=STRING, name="peer", key="peer_addresses")
    log_level: int = option(20, "level", kind=LEVEL)
    name: str = option(lambda: "computed", "name", kind=STRING)
    size: int = option(1, "size", kind=INT, least=1, most=10)
    wait_ns: int = option(SECOND, "wait", kind=DURATION, name="wait", most="msg_timeout_ns")
    mode: str = option("slow", "mode", kind=choice("slow", "fast"))
    go_compatible: bool = option(False, "as Go", kind=BOOL)


def options(*arguments: str) -> Options:
    return parse(Options, "prog", arguments)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        options(*arguments)
    assert isinstance(end.value.code, int)
    return end.value.code, capsys.readouterr().err


def file(folder: Path, text: str) -> str:
    path = folder / "options.toml"
    path.write_text(text, encoding="utf-8")
    return f"--config={path}"
