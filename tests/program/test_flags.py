"""Command lines, configuration files and help pages are those of NSQ's programs."""

from pathlib import Path

import pytest

from sparq.options.declare import differing, flags_of
from sparq.options.mistakes import Mistake
from sparq.options.units import SECOND
from sparq.program.flags import exit_after_mistake, help_page, parse_again, warn
from tests.program.sample import FATAL, Options, file, options, refused

NO_FLAG = "is not a flag: remove it, or write it as a flag's value, --name=value"


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
        (["word", "--node-id=3"], f'"word" {NO_FLAG}'),
        (["-"], f'"-" {NO_FLAG}'),
        (["--", "-node-id=3"], f'"-node-id=3" {NO_FLAG}'),
        (["--deflate", "false"], '"false" after --deflate is not its value: write --deflate=false'),
        (["tcp-address=a:1"], '"tcp-address=a:1" is not a flag: write --tcp-address=a:1'),
        (["tcp_address=a:_"], '"tcp_address=a:_" is not a flag: write --tcp-address=a:_'),
    ],
)
def test_a_wrong_flag_ends_with_1_and_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    """A wrong flag, or a word that is none, ends with status 1 and a sentence with the remedy.

    Go's programs silently ignore such a word and all later flags.
    """
    status, text = refused(capsys, *arguments)

    assert (status, FATAL.sub("", text)) == (1, f"{sentence}\n")


def test_limits_apply_only_to_given_values() -> None:
    """Limits apply only to given values, not to a default above another option's new value."""
    assert options("--msg-timeout=1ms").wait_ns == SECOND


@pytest.mark.parametrize(
    ("arguments", "count"), [(["--size=0", "--mode=first"], 2), (["word", "--size=0"], 1)]
)
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
    assert capsys.readouterr().out.startswith("prog v1.")


def test_a_flag_takes_precedence_over_the_file(tmp_path: Path) -> None:
    """A flag takes precedence over the file, and the file over the default."""
    config = file(tmp_path, 'tcp_address = "f:1"\nid = 4\ndeflate = false\n')

    assert options(config, "-node-id=5") == Options(
        "f:1", False, 5, 60 * SECOND, (), 20, "computed"
    )


def test_parse_again_reads_the_file_again(tmp_path: Path) -> None:
    """``parse_again`` reads the file again; flags still win; a bad file raises Mistake."""
    config = file(tmp_path, 'tcp_address = "f:1"\nid = 4')
    arguments = [config, "-node-id=5", "--version=false", "--help=false"]
    assert parse_again(Options, "prog", arguments) == options(*arguments)

    file(tmp_path, 'tcp_address = "f:2"\nid = 6')
    again = parse_again(Options, "prog", arguments)
    assert (again.tcp_address, again.node_id) == ("f:2", 5)
    assert [flag.key for flag in differing(options("-node-id=5"), again)] == ["tcp_address"]
    file(tmp_path, "tcp_address = 1")
    with pytest.raises(Mistake, match="ERROR: Resolve failed to coerce value 1"):
        parse_again(Options, "prog", arguments)


# The command line


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
def test_all_spellings_of_a_flag_mean_the_same(arguments: list[str]) -> None:
    """All spellings mean the same; the last of repeated flags counts."""
    assert options(*arguments).tcp_address == "a:1"


def test_a_value_may_look_like_anything() -> None:
    """A value is the next word, even if it has dashes, spaces or signs, or is empty."""
    assert options("-name", "--deflate").name == "--deflate"
    assert options("-name", "a b = c").name == "a b = c"
    assert options("-name", "").name == ""
    assert options("-node-id", "-5").node_id == -5
    assert options("--name=--", "-node-id=7").node_id == 7


@pytest.mark.parametrize(
    ("text", "value"), [("=false", False), ("=F", False), ("=0", False), ("", True), ("=t", True)]
)
def test_a_boolean_flag_takes_its_value_only_after_an_equals_sign(text: str, value: bool) -> None:
    """A Boolean flag without `=` is true, and never takes the next word as its value."""
    assert options(f"-deflate{text}", "-node-id=3").deflate is value
    assert options(f"-deflate{text}", "-node-id=3").node_id == 3


def test_two_dashes_at_the_end_change_nothing() -> None:
    """`--` at the end changes nothing."""
    assert options("--node-id=3", "--").node_id == 3


def test_a_repeated_flag_adds_values() -> None:
    """Each occurrence adds one value, which is not split."""
    assert options("-peer=a:1,b:2", "--peer", "c:3").lookupd == ("a:1,b:2", "c:3")


# The file


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
    """An unknown key is an error with the file and the nearest key; NSQ ignores unknown keys."""
    config = file(tmp_path, text)
    status, error = refused(capsys, config)

    assert status == 1
    path = config.removeprefix("--config=")
    assert FATAL.sub("", error) == f"config file {path}: {sentence}\n"
    assert options(config, "--go-compatible").tcp_address == "0.0.0.0:1"
    with pytest.raises(Mistake, match=r"there is no|too small"):
        parse_again(Options, "prog", [config])


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
    """Bare durations are milliseconds; a list may be a text with commas; any value a text."""
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
    """A wrong type, value or syntax, or no file, ends with status 1 and a FATAL line about it."""
    status, text = refused(capsys, file(tmp_path, line))

    assert status == 1
    assert FATAL.sub("", text).startswith(reason)
    (tmp_path / "options.toml").unlink()
    path = tmp_path / "options.toml"
    assert FATAL.sub("", refused(capsys, f"--config={path}")[1]) == (
        f"failed to load config file {path} - open {path}: no such file or directory\n"
    )


# The help page


@pytest.mark.parametrize("flag", ["-h", "-help", "--help"])
def test_help_ends_with_0(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    """`--help` prints every flag with type, text and default on stdout, and ends with 0."""
    with pytest.raises(SystemExit) as end:
        options(flag)

    assert end.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--msg-timeout duration time (default 1m0s)" in text
    assert '--tcp-address string where; 100% sure (default "0.0.0.0:1")' in text
    assert '--log-level level level (default "info")' in text
    assert "--peer string peers (may be given several times)" in text


def test_the_flags_are_in_alphabetical_order() -> None:
    """The help page lists all flags alphabetically, without argparse's own `-h`."""
    flags = flags_of(Options)
    text = help_page("prog", flags[::-1])

    shown = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
    assert shown == sorted(f"--{flag.name}" for flag in flags)
    assert text.startswith("usage: prog [flags]\n")
    assert "-h," not in text


# The end after a mistake


def test_a_daemon_ends_with_a_log_line_and_a_tool_with_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A daemon ends with a FATAL log line, a tool with its name; both with status 1."""
    assert 1 == exit_after_mistake("nsqd", "it is wrong", is_daemon=True).code
    assert 1 == exit_after_mistake("to_nsq", "it is wrong", is_daemon=False).code
    warn("nsqd", "it is odd")

    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("[nsqd] ")
    assert first.endswith(" FATAL: it is wrong")
    assert "to_nsq: it is wrong" == second
    assert third.startswith("[nsqd] ")
    assert third.endswith(" WARNING: it is odd")
