"""The program `sparq`: its commands, their flags, and its error messages."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sparq.cli import COMMANDS, TOOLS, main
from sparq.options.mistakes import one_of


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`sparq --help` lists the pipeline's three commands and the tools."""
    with pytest.raises(SystemExit) as ended:
        main(["--help"])

    said = capsys.readouterr().out
    assert 0 == ended.value.code
    assert all(f"    {command}" in said for command in ("run", "up", "pipeline", *TOOLS))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`sparq --version` prints the version in the form of NSQ's tools."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])

    assert 0 == ended.value.code
    assert capsys.readouterr().out.startswith("sparq v1.")


@pytest.mark.parametrize("command", TOOLS)
def test_a_tool_has_flags_of_its_own(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each tool accepts `-help` and `--version` in the form of NSQ's tools."""
    own = "--file" if command == "token" else "--nsqd-http-address"
    for flag, expected in (("-help", own), ("--version", f"sparq {command} v1.")):
        with pytest.raises(SystemExit) as ended:
            main([command, flag])

        assert 0 == ended.value.code
        assert expected in capsys.readouterr().out


@pytest.mark.parametrize("command", TOOLS)
def test_a_word_that_is_no_flag_is_refused(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An argument without a flag name is an error, so that a tool does not use the wrong nsqd."""
    with pytest.raises(SystemExit) as ended:
        main([command, "127.0.0.1:4151"])

    assert 1 == ended.value.code
    said = capsys.readouterr().err
    why = (
        "there is no verb 127.0.0.1:4151"
        if command in ("admin", "token")
        else '"127.0.0.1:4151" is not a flag'
    )
    assert said.startswith(f"sparq {command}: {why}")
    assert 1 == said.count("\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            [],
            f"the following arguments are required: {' | '.join(COMMANDS)}",
        ),
        (
            ["sideways"],
            f"unknown command sideways: use {one_of(COMMANDS)}",
        ),
        (["tpo"], "unknown command tpo: did you mean top?"),
        (["run", "--count=none"], "argument --count: none is not a whole number of at least 1"),
        (["up", "--clicks"], "unrecognized arguments: --clicks"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the intended command or lists all; usage is printed only on request."""
    with pytest.raises(SystemExit) as ended:
        main(words)

    program = "sparq" if not words or words[0] != "run" else "sparq run"
    assert 1 == ended.value.code
    assert f"{program}: {sentence}\n" == capsys.readouterr().err


def test_only_the_pipeline_needs_spark() -> None:
    """Without pyspark `sparq top` works, and `sparq run` prints what to install."""
    program = (
        "import sys; sys.modules.update(pyspark=None, pyarrow=None, pandas=None);"
        "from sparq.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program]
    top = subprocess.run([*command, "top", "--version"], capture_output=True, check=False)
    run = subprocess.run([*command, "run"], capture_output=True, text=True, check=False)

    assert 0 == top.returncode
    assert 1 == run.returncode
    assert "pip install 'sparq-mq[spark]'" in run.stderr
