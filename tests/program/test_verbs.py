"""Command lines of programs with verbs: words and flags mixed, help pages with examples."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sparq.options.declare import option
from sparq.program import verbs
from sparq.program.verbs import ParsedCommand, Verb


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The flags of the verbs below."""

    yes: bool = option(False, "do not ask")
    to: str = option("", "where to")


VERBS = {
    "send": Verb(
        "WHAT [WHEN]", "send it", Options, about="Sends one thing.", examples=("send a --to=b",)
    ),
    "stop": Verb("", "stop", Options, examples=("stop",)),
}


def read(*words: str) -> ParsedCommand:
    return verbs.read("sparq x", VERBS, words, Options, "The foot.\n")


def test_words_and_flags_may_be_mixed() -> None:
    """A flag takes the next word if it needs one; after `--` all are words, -1h always is."""
    found = read("send", "--yes", "a", "--to", "b", "-1h")
    assert ("send", ("a", "-1h"), Options(yes=True, to="b")) == found[:3]
    assert [("yes", "true"), ("to", "b")] == [(flag.name, text) for flag, text in found.given]
    assert ("-", "--to") == read("send", "--", "-", "--to").words


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("sned",), "sparq x: there is no verb sned: did you mean send?"),
        (("jump",), "sparq x: there is no verb jump: use send or stop"),
        (("send",), "sparq x send: takes WHAT [WHEN], not nothing"),
        (("stop", "now"), "sparq x stop: takes no words, not now"),
        (("send", "a", "--ot=b"), "sparq x send: there is no flag --ot: see sparq x send --help"),
        (("send", "a", "--to"), "sparq x send: --to has no value: write --to=STRING"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the word, and the one that was probably meant; the status is 1."""
    with pytest.raises(SystemExit) as ended:
        read(*words)
    assert 1 == ended.value.code
    assert f"{sentence}\n" == capsys.readouterr().err


def test_help_has_the_verbs_and_each_verbs_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a word, or with --help, the verbs are listed; a verb's page has its description."""
    for words in ((), ("--help",), ("-h",)):
        with pytest.raises(SystemExit) as ended:
            read(*words)
        page = capsys.readouterr().out
        assert (0, True) == (ended.value.code, page.endswith("\n\nThe foot.\n"))
        assert "  send WHAT [WHEN]  send it\n  stop              stop\n" in page
    for verb, text in (("send", "Sends one thing."), ("stop", "Stop.")):
        with pytest.raises(SystemExit):
            read(verb, "--help")
        page = capsys.readouterr().out
        assert f"\n\n{text}\n\nexamples:\n  sparq x {VERBS[verb].examples[0]}\n\noptions:" in page
    with pytest.raises(SystemExit):
        read("--version")
    assert capsys.readouterr().out.startswith("sparq x v1.")
