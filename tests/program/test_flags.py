"""Flags and configuration files are taken as NSQ's programs take them."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparq.program.flag_types import BOOL, DURATION, INT, LEVEL, STRING, choice
from sparq.program.flags import FileError, differing, option, parse, parse_again
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
    size: int = option(1, "size", kind=INT, least=1, most=10)
    wait_ns: int = option(SECOND, "wait", kind=DURATION, name="wait", most="msg_timeout_ns")
    mode: str = option("slow", "mode", kind=choice("slow", "fast"))
    go_compatible: bool = option(False, "as Go", kind=BOOL)


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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["word", "--node-id=3"],
            '"word" is not a flag: remove it, or write it as a flag\'s value, --name=value',
        ),
        (["-"], '"-" is not a flag: remove it, or write it as a flag\'s value, --name=value'),
        (["--", "-node-id=3"], '"-node-id=3" is not a flag: remove it, or write it as a flag\'s'),
        (["--deflate", "false"], '"false" after --deflate is not its value: write --deflate=false'),
        (["tcp-address=a:1"], '"tcp-address=a:1" is not a flag: write --tcp-address=a:1'),
        (["tcp_address=a:_"], '"tcp_address=a:_" is not a flag: write --tcp-address=a:_'),
    ],
)
def test_a_word_that_is_no_flag_is_a_mistake(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    """Go's programs drop it and every flag after it in silence; here it ends the program."""
    status, text = refused(capsys, *arguments)

    assert status == 1
    assert FATAL.sub("", text).startswith(sentence)
    assert text.count("\n") == 1


def test_two_dashes_alone_end_the_flags() -> None:
    """With nothing after them they change nothing."""
    assert options("--node-id=3", "--").node_id == 3


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
    ("arguments", "sentence"),
    [
        (["-nope"], "there is no flag --nope: see prog --help"),
        (["--nope=3"], "there is no flag --nope: see prog --help"),
        (["--mgs-timeout=3s"], "there is no flag --mgs-timeout: did you mean --msg-timeout?"),
        (["--msg_timeout", "3s"], "there is no flag --msg_timeout: did you mean --msg-timeout?"),
        (["--tcp"], "there is no flag --tcp: did you mean --tcp-address?"),
        (["---deflate"], "---deflate is not a flag: write --name=value"),
        (["-=3"], "-=3 is not a flag: write --name=value"),
        (["-node-id"], "--node-id has no value: write --node-id=INT"),
        (["-node-id", "x"], "--node-id=x: write a whole number"),
        (["-node-id", " 1"], '--node-id=" 1": write a whole number'),
        (["-node-id", "9" * 30], f"--node-id={'9' * 30}: write a whole number of at most 64 bits"),
        (["-deflate=maybe"], "--deflate=maybe: write true or false"),
        (["-msg-timeout", "60"], "--msg-timeout=60: write a unit: 60s or 60ms"),
        (
            ["--msg-timeout=soon"],
            "--msg-timeout=soon: write a duration with its unit, such as 60s, 300ms or 1.5h",
        ),
        (
            ["-log-level=wran"],
            "--log-level=wran: log level must be one of debug, info, warn, error, fatal: "
            "did you mean warn?",
        ),
        (["--size=0"], "--size=0 is too small: use 1 or more"),
        (["--size=11"], "--size=11 is too large: use 10 or less"),
        (
            ["--wait=61s"],
            "--wait=1m1s is above --msg-timeout (1m0s): lower it, or raise --msg-timeout",
        ),
        (["--mode=first"], "--mode=first is unknown: did you mean fast?"),
        (["--mode=x"], "--mode=x is unknown: use slow or fast"),
    ],
)
def test_a_mistake_ends_with_1_and_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    """It names the flag as a user would write it and what to write instead; no usage follows."""
    status, text = refused(capsys, *arguments)

    assert (status, FATAL.sub("", text)) == (1, f"{sentence}\n")


def test_a_tool_says_it_after_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    """A tool has no log: its name stands before the sentence."""
    with pytest.raises(SystemExit) as end:
        parse(Options, "tool", "", ["--nope"], takes_file=False)

    assert end.value.code == 1
    assert capsys.readouterr().err == "tool: there is no flag --nope: see tool --help\n"


def test_defaults_that_another_option_overtakes_are_no_mistake() -> None:
    """Only what the user gave is held to its bounds."""
    assert options("--msg-timeout=1ms").wait_ns == SECOND


GO_WOULD_START = [
    (["--size=0", "--mode=first"], 2),
    (["word", "--size=0"], 1),
]


@pytest.mark.parametrize(("arguments", "count"), GO_WOULD_START)
def test_go_compatible_starts_with_a_warning(
    capsys: pytest.CaptureFixture[str], arguments: list[str], count: int
) -> None:
    """What NSQ passes over is a warning each; what NSQ refuses stays a mistake."""
    options("--go-compatible", *arguments)

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == count
    assert all("WARNING: " in text and "because of --go-compatible" in text for text in lines)
    assert refused(capsys, "--go-compatible", "--nope")[0] == 1


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
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tcp_adress = 1", "there is no option tcp_adress: did you mean tcp_address?"),
        ("node-id = 1", "there is no option node-id: did you mean id?"),
        ("peer = []", "there is no option peer: did you mean peer_addresses?"),
        ("future = [1]", "there is no option future: remove it"),
        (
            "[prog]\nid = 1",
            "there is no section [prog]: write its options at the top, without sections",
        ),
        ("size = 0", "size = 0 is too small: use 1 or more"),
    ],
)
def test_a_mistake_in_the_file_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, sentence: str
) -> None:
    """With the file, and the right key if one is close; NSQ ignores what it does not know."""
    config = file(tmp_path, text)
    status, said = refused(capsys, config)

    assert status == 1
    path = config.removeprefix("--config=")
    assert FATAL.sub("", said) == f"config file {path}: {sentence}\n"
    assert options(config, "--go-compatible").tcp_address == "0.0.0.0:1"
    with pytest.raises(FileError, match=r"there is no|too small"):
        parse_again(Options, "prog", [config])


def test_a_file_sets_what_the_command_line_does_not(tmp_path: Path) -> None:
    """Flag before file before default."""
    config = file(tmp_path, 'tcp_address = "f:1"\nid = 4\ndeflate = false\n')

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
