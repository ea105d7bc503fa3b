"""Flags and configuration files are read as by NSQ's programs."""

from pathlib import Path

import pytest

from sparq.program.flags import FileError, differing, parse, parse_again
from sparq.protocol.durations import SECOND
from tests.program.sample import FATAL, Options, file, options, refused


def test_without_flags_everything_has_its_default() -> None:
    """Without flags every option has its default, including computed ones."""
    assert options() == Options("0.0.0.0:1", True, None, 60 * SECOND, (), 20, "computed")


@pytest.mark.parametrize(
    ("text", "value"), [("10", 10), ("0x10", 16), ("010", 8), ("0b11", 3), ("-0x1", -1), ("0", 0)]
)
def test_numbers_may_have_gos_prefixes(text: str, value: int) -> None:
    """The prefixes 0x, 0b and 0 mean hexadecimal, binary and octal numbers."""
    assert options("-node-id", text).node_id == value


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
def test_a_wrong_flag_ends_with_1_and_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    """A wrong flag ends with status 1 and one sentence with the flag and the remedy, no usage."""
    status, text = refused(capsys, *arguments)

    assert (status, FATAL.sub("", text)) == (1, f"{sentence}\n")


def test_a_tool_prints_its_name_before_the_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """A tool, which has no log, prints its name before the sentence."""
    with pytest.raises(SystemExit) as end:
        parse(Options, "tool", "", ["--nope"], takes_file=False)

    assert end.value.code == 1
    assert capsys.readouterr().err == "tool: there is no flag --nope: see tool --help\n"


def test_limits_apply_only_to_given_values() -> None:
    """Limits apply only to given values, not to a default above another option's new value."""
    assert options("--msg-timeout=1ms").wait_ns == SECOND


ACCEPTED_BY_NSQ = [
    (["--size=0", "--mode=first"], 2),
    (["word", "--size=0"], 1),
]


@pytest.mark.parametrize(("arguments", "count"), ACCEPTED_BY_NSQ)
def test_go_compatible_starts_with_a_warning(
    capsys: pytest.CaptureFixture[str], arguments: list[str], count: int
) -> None:
    """With --go-compatible, values that NSQ accepts are warnings; others are still errors."""
    options("--go-compatible", *arguments)

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == count
    assert all("WARNING: " in text and "because of --go-compatible" in text for text in lines)
    assert refused(capsys, "--go-compatible", "--nope")[0] == 1


def test_version_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    """`-version` prints one line on stdout and ends with 0, even with other flags."""
    with pytest.raises(SystemExit) as end:
        options("-name=x", "-version")

    assert end.value.code == 0
    assert capsys.readouterr().out == "prog v9\n"


def test_a_flag_takes_precedence_over_the_file(tmp_path: Path) -> None:
    """A flag takes precedence over the file, and the file over the default."""
    config = file(tmp_path, 'tcp_address = "f:1"\nid = 4\ndeflate = false\n')

    assert options(config, "-node-id=5") == Options(
        "f:1", False, 5, 60 * SECOND, (), 20, "computed"
    )


def test_parse_again_reads_the_file_again(tmp_path: Path) -> None:
    """``parse_again`` reads the file again; flags still win; a bad file raises FileError."""
    config = file(tmp_path, 'tcp_address = "f:1"\nid = 4')
    arguments = [config, "-node-id=5", "--version=false", "--help=false"]
    assert parse_again(Options, "prog", arguments) == options(*arguments)

    file(tmp_path, 'tcp_address = "f:2"\nid = 6')
    again = parse_again(Options, "prog", arguments)
    assert (again.tcp_address, again.node_id) == ("f:2", 5)
    assert [flag.key for flag in differing(options("-node-id=5"), again)] == ["tcp_address"]
    file(tmp_path, "tcp_address = 1")
    with pytest.raises(FileError, match="ERROR: Resolve failed to coerce value 1"):
        parse_again(Options, "prog", arguments)
