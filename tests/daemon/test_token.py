"""The HTTP token: its sources, its header, and that it is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparq.daemon.token import hidden, resolve, without_secrets
from sparq.program.lifecycle import StartError


def test_a_token_is_read_from_the_option_or_a_file(tmp_path: Path) -> None:
    """The option is the token itself, or @file; the file's line end is not part of it."""
    file = tmp_path / "token"
    file.write_text("abc.~_+/-==\n")

    assert "" == resolve("")
    assert "abc" == resolve("abc")
    assert "abc.~_+/-==" == resolve(f"@{file}")


@pytest.mark.parametrize("content", [b"", b"a b", b"\xff", b"a\nb", b"x" * 600])
def test_an_invalid_token_is_a_start_error(tmp_path: Path, content: bytes) -> None:
    """An empty, unreadable or invalid token is a StartError with the flag's name."""
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(StartError, match="--http-token"):
        resolve(f"@{tmp_path}/token")
    with pytest.raises(StartError, match="missing cannot be read - No such file"):
        resolve(f"@{tmp_path}/missing")
    with pytest.raises(StartError, match="letters"):
        resolve("two words")


def test_a_command_line_is_shown_without_secrets() -> None:
    """A command line is shown without tokens and without users, passwords and queries of URLs."""
    given = "nsqd --http-token=abc -http-token abc --http-token=@/f --x=y http://u:p@w@h/?k=v -x"
    shown = "nsqd --http-token=*** -http-token *** --http-token=@/f --x=y http://h/ -x"

    assert shown.split() == without_secrets(given.split())
    assert ("", "***", "@f") == (hidden(""), hidden("abc"), hidden("@f"))
