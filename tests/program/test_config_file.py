"""A configuration file: its values, their types, and errors."""

from pathlib import Path

import pytest

from sparq.program.flags import FileError, parse_again
from sparq.protocol.durations import SECOND
from tests.program.sample import FATAL, Options, file, options, refused


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
    with pytest.raises(FileError, match=r"there is no|too small"):
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
    """A wrong type, value or TOML syntax ends with status 1 and a FATAL line with the option."""
    status, text = refused(capsys, file(tmp_path, line))

    assert status == 1
    assert FATAL.sub("", text).startswith(reason)


def test_a_missing_file_ends_with_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A missing file ends with status 1 and a FATAL line with its path."""
    status, text = refused(capsys, f"-config={tmp_path}/none.toml")

    assert status == 1
    assert FATAL.sub("", text) == (
        f"failed to load config file {tmp_path}/none.toml - open {tmp_path}/none.toml: "
        "no such file or directory\n"
    )
