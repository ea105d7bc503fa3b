"""Tokens: the file with their hashes, and new tokens."""

from __future__ import annotations

import datetime
import hashlib
import re
from pathlib import Path

import pytest

from sparq.daemon.access import rules, tokens
from sparq.daemon.access.rules import Role, roles_for
from sparq.daemon.access.tokens import ADMINS_FORM
from sparq.program.lifecycle import StartError
from tests.nsqadmin.access.options import NOW

TOKEN = "a-token-of-some-length"
HASH = hashlib.sha256(TOKEN.encode()).hexdigest()
OTHER = "0" * 64


def in_file(folder: Path, text: str) -> str:
    path = folder / "tokens"
    path.write_text(text)
    return str(path)


def test_the_file_has_names_and_roles_of_tokens(tmp_path: Path) -> None:
    """A token's name and roles are read; comments, blank lines and `sha256:` are allowed."""
    text = f"# all\n\nbob  operate,bodies  sha256:{HASH.upper()}  # his\n\teve read {OTHER}\r\n"
    found = tokens.read(in_file(tmp_path, text)).find(TOKEN, NOW)

    assert found is not None
    assert ("bob", Role.OPERATE | Role.BODIES) == (found.name, roles_for(found.grants, ""))


@pytest.mark.parametrize(
    "shown", ["", "secret", HASH, TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "ä" * 30]
)
def test_a_similar_text_is_not_accepted_as_the_token(tmp_path: Path, shown: str) -> None:
    """A similar text, or the token's hash, is not accepted as the token; nor is a short token."""
    own = hashlib.sha256(shown.encode()).hexdigest() if len(shown) < tokens.LENGTH_MIN else HASH
    assert tokens.read(in_file(tmp_path, f"bob read {own}")).find(shown, NOW) is None


@pytest.mark.parametrize(
    ("written", "ends"),
    [
        ("2027-03-31", "2027-04-01T00:00:00+00:00"),
        ("2027-03-31T12:00:00Z", "2027-03-31T12:00:00+00:00"),
        ("2027-03-31T12:00:00+02:00", "2027-03-31T10:00:00+00:00"),
    ],
)
def test_a_token_is_valid_until_the_end_of_its_last_day(
    tmp_path: Path, written: str, ends: str
) -> None:
    """A token with a date is valid until the end of that day in UTC."""
    end = datetime.datetime.fromisoformat(ends).timestamp()
    found = tokens.read(in_file(tmp_path, f"bob read {HASH} {written}"))

    assert found.find(TOKEN, end - 0.001) is not None
    assert found.find(TOKEN, end) is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("bob read", "write NAME ROLES SHA256"),
        (f"bob read {HASH} 2027-01-01 x", "write NAME ROLES SHA256"),
        (f"bob boss {HASH}", "is not a role"),
        (f"bob read {HASH[:-1]}", "64 hex digits"),
        (f"bob read {TOKEN}", "64 hex digits"),
        (f"bo/b read {HASH}", "a name has"),
        (f"http-token read {HASH}", "stands for the flag --http-token in audit files"),
        (f"bob read {HASH} tomorrow", "is not a date"),
        (f"bob read {HASH} 2027-03-31T12:00:00", "has no UTC offset"),
        (f"bob read {HASH}\neve read {HASH}", "already in the file"),
        ("anybody publish -", "at most the role read"),
        ("anybody read,bodies -", "at most the role read"),
        (f"anybody read {HASH}", "at most the role read"),
        ("anybody read - 2030-01-01", "at most the role read"),
        ("bob read -", "64 hex digits"),
        ("anybody read -\nanybody read -", "already in the file"),
    ],
)
def test_a_file_with_a_mistake_is_refused_with_the_line(
    tmp_path: Path, line: str, why: str
) -> None:
    """The error has the line number and reason, but no token; no part of the file is used."""
    with pytest.raises(tokens.TokenFileError, match=f"line [12]: .*{why}") as caught:
        tokens.read(in_file(tmp_path, line))

    assert TOKEN not in str(caught.value)


def test_a_file_that_all_users_may_write_is_refused(tmp_path: Path) -> None:
    """A file that all users may write, is no text, too large or unreadable is refused."""
    path = Path(in_file(tmp_path, f"bob read {HASH}"))
    path.chmod(0o666)
    with pytest.raises(tokens.TokenFileError, match="can be changed by every user"):
        tokens.read(str(path))
    path.chmod(0o644)
    path.write_bytes(b"\xff")
    with pytest.raises(tokens.TokenFileError, match="is not UTF-8 text"):
        tokens.read(str(path))
    path.write_text("#" * (tokens.FILE_BYTES_MAX + 1))
    with pytest.raises(tokens.TokenFileError, match="larger"):
        tokens.read(str(path))
    many = (f"bob read {number:064x}" for number in range(tokens.TOKENS_MAX + 1))
    path.write_text("\n".join(many))
    with pytest.raises(tokens.TokenFileError, match="more than"):
        tokens.read(str(path))
    with pytest.raises(tokens.TokenFileError, match="cannot be read"):
        tokens.read(str(tmp_path))


def test_the_line_of_a_new_token_accepts_it(tmp_path: Path) -> None:
    """``make`` returns different tokens, and a line that accepts but does not contain the token."""
    first, second = tokens.make("bob", "operate", "2030-01-01"), tokens.make("bob", "operate")
    found = tokens.read(in_file(tmp_path, f"{first[1]}\n{second[1]}"))

    assert first[0] != second[0]
    assert first[0] not in first[1]
    assert all(found.find(token, NOW) for token, _ in (first, second))


@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        (["Bearer abc"], True),
        (["bearer   abc "], True),
        (["Bearer abcd"], False),
        (["Bearer ab"], False),
        (["Bearer"], False),
        (["BearerXabc"], False),
        (["Basic abc"], False),
        (["Bearer abc", "Bearer abc"], False),
        ([], False),
    ],
)
def test_a_token_is_accepted_only_in_a_bearer_header(headers: list[str], shown: bool) -> None:
    """A token is accepted only whole, in a single Authorization header of type Bearer."""
    found = tokens.shown(headers)

    assert shown == bool(found and tokens.is_same(found, "abc"))


def test_a_comment_may_follow_a_pattern(tmp_path: Path) -> None:
    """`#ephemeral` ends a pattern; any other `#` begins a comment."""
    text = f"#ephemeral things\nbob publish:a#ephemeral,read {HASH}#his\neve read {OTHER} # hers"
    found = tokens.read(in_file(tmp_path, text))

    assert 2 == len(found)
    (bob, eve) = found.lines
    assert ("a#ephemeral", "*") == tuple(grant.topics for grant in bob.grants)
    assert Role.READ == roles_for(eve.grants, "")


def test_the_line_anybody_grants_roles_without_a_token(tmp_path: Path) -> None:
    """The line `anybody` grants roles without a token, and is not counted as a token."""
    found = tokens.read(in_file(tmp_path, "anybody read:public* -\n"))

    assert 0 == len(found)
    assert Role.READ == rules.roles_for(found.anybody, "public.1")
    assert Role.NONE == rules.roles_for(found.anybody, "private")


def test_nsqadmin_refuses_roles_and_patterns_it_does_not_support(tmp_path: Path) -> None:
    """nsqadmin refuses patterns and roles that it does not support, instead of ignoring them."""
    for granted, why in (
        ("read:clicks*", "without a pattern"),
        ("consume", "is not a role: use read, bodies, operate, administer, publish"),
    ):
        path = in_file(tmp_path, f"bob {granted} {HASH}")
        with pytest.raises(tokens.TokenFileError, match=re.escape(why)):
            tokens.read(path, ADMINS_FORM)


def test_in_force_counts_the_tokens_that_have_not_expired(tmp_path: Path) -> None:
    """``in_force`` counts the tokens that have not expired; `/metrics` reports it."""
    found = tokens.read(in_file(tmp_path, f"bob read {HASH} 2020-01-01\neve read {OTHER}"))

    assert (2, 1) == (len(found), found.in_force(NOW))


def test_a_token_is_read_from_the_option_or_a_file(tmp_path: Path) -> None:
    """The option is the token itself, or @file; the file's line end is not part of it."""
    file = tmp_path / "token"
    file.write_text("abc.~_+/-==\n")

    assert "" == tokens.resolve("")
    assert "abc" == tokens.resolve("abc")
    assert "abc.~_+/-==" == tokens.resolve(f"@{file}")


@pytest.mark.parametrize("content", [b"", b"a b", b"\xff", b"a\nb", b"x" * 600])
def test_an_invalid_token_is_a_start_error(tmp_path: Path, content: bytes) -> None:
    """An empty, unreadable or invalid token is a StartError with the flag's name."""
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(StartError, match="--http-token"):
        tokens.resolve(f"@{tmp_path}/token")
    with pytest.raises(StartError, match="missing cannot be read - No such file"):
        tokens.resolve(f"@{tmp_path}/missing")
    with pytest.raises(StartError, match="letters"):
        tokens.resolve("two words")
