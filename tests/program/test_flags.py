"""Flags and configuration files are taken as NSQ's programs take them."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparq.program.flags import FileError, behind_flags, differing, option, parse, parse_again
from sparq.program.kinds import BOOL, DURATION, INT, LEVEL, STRING
from sparq.protocol.durations import SECOND

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


def options(*arguments: str) -> Options:
    return parse(Options, "prog", "prog v9", arguments)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        options(*arguments)
    assert isinstance(end.value.code, int)
    return end.value.code, capsys.readouterr().err


def test_without_flags_everything_has_its_default() -> None:
    """Defaults stand, computed ones too."""
    assert options() == Options("0.0.0.0:1", True, None, 60 * SECOND, (), 20, "computed")


@pytest.mark.parametrize(
    "arguments",
    [
        ["-tcp-address", "a:1"],
        ["--tcp-address", "a:1"],
        ["-tcp-address=a:1"],
        ["--tcp-address=a:1"],
        ["--tcp-address=b:2", "-tcp-address", "a:1"],
    ],
)
def test_one_dash_or_two_and_value_apart_or_joined(arguments: list[str]) -> None:
    """All spellings mean the same; of several the last counts."""
    assert options(*arguments).tcp_address == "a:1"


def test_a_value_may_look_like_anything() -> None:
    """A value is the next word, also one with dashes, blanks, signs or nothing in it."""
    assert options("-name", "--deflate").name == "--deflate"
    assert options("-name", "a b = c").name == "a b = c"
    assert options("-name", "").name == ""
    assert options("-node-id", "-5").node_id == -5
    assert options("--name=--", "-node-id=7").node_id == 7


@pytest.mark.parametrize(
    ("text", "value"), [("=false", False), ("=F", False), ("=0", False), ("", True), ("=t", True)]
)
def test_a_boolean_has_its_value_behind_an_equals_sign(text: str, value: bool) -> None:
    """The bare flag is true, and never eats the next word."""
    assert options(f"-deflate{text}", "-node-id=3").deflate is value
    assert options(f"-deflate{text}", "-node-id=3").node_id == 3


def test_flags_end_where_words_begin() -> None:
    """As in Go, the first word that is no flag, and `--`, end the flags."""
    assert options("word", "-node-id=3").node_id is None
    assert options("--", "-node-id=3").node_id is None
    assert options("-", "-node-id=3").node_id is None


def test_what_stands_behind_the_flags_is_known() -> None:
    """So that a program can say that it does nothing with it."""
    assert [] == behind_flags(Options, ["-deflate", "--node-id", "3", "--config=x", "--version"])
    assert ["false", "--node-id=3"] == behind_flags(Options, ["-deflate", "false", "--node-id=3"])
    assert ["-x"] == behind_flags(Options, ["--node-id=3", "--", "-x"])


@pytest.mark.parametrize(
    ("text", "value"), [("10", 10), ("0x10", 16), ("010", 8), ("0b11", 3), ("-0x1", -1), ("0", 0)]
)
def test_numbers_have_gos_bases(text: str, value: int) -> None:
    """0x, 0b and a leading 0 name the base."""
    assert options("-node-id", text).node_id == value


def test_a_repeated_flag_gathers() -> None:
    """Each occurrence adds one value, which is not split."""
    assert options("-peer=a:1,b:2", "--peer", "c:3").lookupd == ("a:1,b:2", "c:3")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["-nope"], "flag provided but not defined: -nope"),
        (["--nope=3"], "flag provided but not defined: -nope"),
        (["---deflate"], "bad flag syntax: ---deflate"),
        (["-=3"], "bad flag syntax: -=3"),
        (["-node-id"], "flag needs an argument: -node-id"),
        (["-node-id", "x"], 'invalid value "x" for flag -node-id: parse error'),
        (["-node-id", " 1"], 'invalid value " 1" for flag -node-id: parse error'),
        (
            ["-node-id", "9" * 30],
            f'invalid value "{"9" * 30}" for flag -node-id: value out of range',
        ),
        (["-deflate=maybe"], 'invalid boolean value "maybe" for flag -deflate: parse error'),
        (["-msg-timeout", "60"], 'invalid value "60" for flag -msg-timeout: parse error'),
        (["-log-level=foo"], 'invalid value "foo" for flag -log-level: log level must be one of'),
        (["--tcp"], "flag provided but not defined: -tcp"),
    ],
)
def test_a_bad_command_line_ends_with_2_and_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    """The reason comes first, then the usage, on stderr; there are no abbreviations."""
    status, text = refused(capsys, *arguments)

    assert status == 2
    assert text.startswith(reason)
    assert "--msg-timeout duration" in text


@pytest.mark.parametrize("flag", ["-h", "-help", "--help"])
def test_help_ends_with_0(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    """Help goes to stdout with every flag, its text and its default."""
    with pytest.raises(SystemExit) as end:
        options(flag)

    assert end.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--msg-timeout duration time (default 1m0s)" in text
    assert '--tcp-address string where; 100% sure (default "0.0.0.0:1")' in text
    assert '--log-level level level (default "info")' in text
    assert "--peer string peers (may be given several times)" in text


def test_version_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    """The version is one line on stdout, whatever else is given."""
    with pytest.raises(SystemExit) as end:
        options("-name=x", "-version")

    assert end.value.code == 0
    assert capsys.readouterr().out == "prog v9\n"


def file(folder: Path, text: str) -> str:
    path = folder / "options.toml"
    path.write_text(text, encoding="utf-8")
    return f"--config={path}"


@pytest.mark.behaviour("more.unknown-config-keys")
def test_a_file_sets_what_the_command_line_does_not(tmp_path: Path) -> None:
    """Flag before file before default; unknown keys do no harm."""
    config = file(tmp_path, 'tcp_address = "f:1"\nid = 4\ndeflate = false\nfuture = [1]\n')

    assert options(config, "-node-id=5") == Options(
        "f:1", False, 5, 60 * SECOND, (), 20, "computed"
    )


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ('msg_timeout = "2s"', "msg_timeout_ns", 2 * SECOND),
        ("msg_timeout = 1500", "msg_timeout_ns", 1_500_000_000),
        ('peer_addresses = ["a:1", "b:2"]', "lookupd", ("a:1", "b:2")),
        ('peer_addresses = "a:1,b:2"', "lookupd", ("a:1", "b:2")),
        ('peer_addresses = ""', "lookupd", ()),
        ('deflate = "false"', "deflate", False),
        ('id = "12"', "node_id", 12),
        ('log_level = "ERROR"', "log_level", 40),
    ],
)
def test_values_of_a_file_are_coerced(tmp_path: Path, line: str, field: str, value: object) -> None:
    """Bare durations are milliseconds; lists may be one text with commas; texts may be values."""
    assert getattr(options(file(tmp_path, line)), field) == value


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("id = true", "ERROR: Resolve failed to coerce value True for option id"),
        ("msg_timeout = 1.5", "ERROR: Resolve failed to coerce value 1.5 for option msg_timeout"),
        ('msg_timeout = "60"', "ERROR: Resolve failed to coerce value 60 for option msg_timeout"),
        ("deflate = 1", "ERROR: Resolve failed to coerce value 1 for option deflate"),
        ("tcp_address = 1", "ERROR: Resolve failed to coerce value 1 for option tcp_address"),
        ("peer_addresses = 1", "ERROR: Resolve failed to coerce value 1 for option peer_addr"),
        ("peer_addresses = [1]", "ERROR: Resolve failed to coerce value [1] for option peer_addr"),
        ('log_level = "foo"', "failed parsing log_level foo"),
        ("id = ", "failed to load config file"),
    ],
)
def test_a_bad_file_ends_with_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, reason: str
) -> None:
    """A wrong type or broken TOML is fatal, and says which option it was, as a log line does."""
    status, text = refused(capsys, file(tmp_path, line))

    assert status == 1
    assert FATAL.sub("", text).startswith(reason)


def test_a_missing_file_ends_with_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A file that is named must be there."""
    status, text = refused(capsys, f"-config={tmp_path}/none.toml")

    assert status == 1
    assert FATAL.sub("", text) == (
        f"failed to load config file {tmp_path}/none.toml - open {tmp_path}/none.toml: "
        "no such file or directory\n"
    )


def test_options_are_made_again_from_the_file_as_it_is_now(tmp_path: Path) -> None:
    """The command line still wins; a file that cannot be used is an exception, not the end."""
    arguments = [file(tmp_path, 'tcp_address = "f:1"\nid = 4'), "-node-id=5"]
    assert parse_again(Options, "prog", arguments) == options(*arguments)

    file(tmp_path, 'tcp_address = "f:2"\nid = 6')
    again = parse_again(Options, "prog", arguments)
    assert (again.tcp_address, again.node_id) == ("f:2", 5)
    assert [flag.key for flag in differing(options("-node-id=5"), again)] == ["tcp_address"]
    file(tmp_path, "tcp_address = 1")
    with pytest.raises(FileError, match="ERROR: Resolve failed to coerce value 1"):
        parse_again(Options, "prog", arguments)
