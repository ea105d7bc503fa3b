"""docs/daemons.md: its flags, keys, command lines and samples are those of the daemons."""

from __future__ import annotations

import logging
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from sparq.nsqd.options import NsqdOptions
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.program.flags import flags_of, parse
from sparq.program.logging import line as log_line
from sparq.program.stdout import version_line

TEXT = (Path(__file__).parents[3] / "docs" / "daemons.md").read_text(encoding="utf-8")
PROGRAMS = {"nsqd": NsqdOptions, "nsqlookupd": NsqlookupdOptions}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(TEXT) if kind == language]


def test_every_named_flag_and_key_exists() -> None:
    """Each `--flag` in the text is a flag; each word with underscores in code quotes is a key."""
    flags = {flag for options in PROGRAMS.values() for flag in flags_of(options)}
    names = {flag.name for flag in flags} | {"help", "version", "config"}
    keys = {flag.key for flag in flags}

    unknown = set(re.findall(r"--([a-z][a-z0-9-]+)", TEXT)) - names
    assert unknown == set(), "docs/daemons.md names flags that no daemon has"
    unknown = set(re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+)+)`", TEXT)) - keys
    assert unknown == set(), "docs/daemons.md names keys that no configuration file has"


@pytest.mark.parametrize(
    "line", [line[2:] for block in blocks("console") for line in block.splitlines()]
)
def test_a_daemon_accepts_its_command_line(line: str, tmp_path: Path) -> None:
    """The daemon accepts each command line of the page; only the configuration file is replaced."""
    program, *words = shlex.split(line)
    (tmp_path / "file.toml").write_text("")
    words = [re.sub(r"^-config=.*", f"-config={tmp_path}/file.toml", word) for word in words]

    options = PROGRAMS[program]
    assert isinstance(parse(options, program, "", words), options)


def test_nsqd_accepts_the_configuration_file(tmp_path: Path) -> None:
    """Each key is one of nsqd's, each value has its type."""
    (example,) = blocks("toml")
    (tmp_path / "nsqd.toml").write_text(example)
    taken = parse(NsqdOptions, "nsqd", "", [f"--config={tmp_path}/nsqd.toml"])
    fields = {flag.key: flag.field for flag in flags_of(NsqdOptions)}

    assert set(tomllib.loads(example)) - set(fields) == set()
    assert len(taken.lookupd.tcp_addresses) == 2
    assert taken.broker.limits.msg_timeout_ms == 90_000


def test_samples_match_real_lines() -> None:
    """The samples of the version and of log lines match real ones, apart from numbers."""
    version, mistake, log = (block.rstrip("\n") for block in blocks(""))
    text = "TCP: listening on [::]:4150"

    assert with_zeros(version) == with_zeros(version_line("nsqd"))
    reason = "--msg-timeout=60: write a unit: 60s or 60ms"
    assert with_zeros(mistake) == with_zeros(log_line("[nsqd] ", logging.CRITICAL, reason))
    assert with_zeros(log) == with_zeros(log_line("[nsqd] ", logging.INFO, text))


def with_zeros(text: str) -> str:
    """A text with every number replaced by 0: numbers differ from run to run."""
    return re.sub(r"\d+", "0", text)
