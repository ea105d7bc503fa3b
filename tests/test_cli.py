"""The program `sparq`: its commands, their flags, and its error messages."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sparq.cli import COMMANDS, main
from sparq.options.mistakes import one_of


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`sparq --help` lists the commands, `--version` has the form of NSQ's tools."""
    assert 0 == main(["--help"])
    said = capsys.readouterr().out
    assert all(f"\n  {command} " in said for command in COMMANDS)
    assert 0 == main(["--version"])
    assert capsys.readouterr().out.startswith("sparq v1.")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_flags_of_its_own(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command accepts `-help` and `--version` in the form of NSQ's tools."""
    own = {"token": "--file", "top": "--nsqd-http-address", "admin": "--nsqd-http-address"}
    expected = ("-help", own.get(command, "--data")), ("--version", f"sparq {command} v1.")
    for flag, text in expected:
        with pytest.raises(SystemExit) as ended:
            main([command, flag])

        assert 0 == ended.value.code
        assert text in capsys.readouterr().out


@pytest.mark.parametrize("command", ["top", "admin", "token"])
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
        ([], f"sparq: a command is missing: use {one_of(COMMANDS)}"),
        (["sideways"], f"sparq: unknown command sideways: use {one_of(COMMANDS)}"),
        (["tpo"], "sparq: unknown command tpo: did you mean top?"),
        (["run", "--count=none"], "sparq run: --count=none: write a whole number"),
        (["run", "--count=0"], "sparq run: --count=0 is too small: use 1 or more"),
        (["up", "--clicks=x"], "sparq up: there is no flag --clicks: see sparq up --help"),
        (["report"], "sparq report: --data is missing: name the data folder, a path or a URI"),
        (["report", "--since=x"], "sparq report: --since=x: "),
        (["forget", "--data=/"], 'sparq forget: --address="": give an address'),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the intended command or lists all; usage is printed only on request."""
    try:
        status: int | str | None = main(words)
    except SystemExit as ended:
        status = ended.code
    said = capsys.readouterr().err
    assert (1, 1) == (status, said.count("\n"))
    assert said.startswith(sentence)


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
