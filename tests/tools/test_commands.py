"""The commands of the tools: each starts the module of its tool."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from sparq.program.flags import flags_of
from sparq.tools import commands

OPTIONS = {
    "nsq_check": commands.CheckOptions,
    "nsq_stat": commands.NsqStatOptions,
    "nsq_tail": commands.NsqTailOptions,
    "nsq_to_file": commands.NsqToFileOptions,
    "nsq_to_http": commands.NsqToHttpOptions,
    "nsq_to_nsq": commands.NsqToNsqOptions,
    "to_nsq": commands.ToNsqOptions,
    "top": commands.TopOptions,
}


@pytest.mark.parametrize("tool", OPTIONS)
def test_each_command_starts_the_module_of_its_tool(
    tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command passes its options on, and returns the tool's exit status."""
    given: list[Any] = []

    def start(options: Any) -> int:
        given.append(options)
        return 7

    monkeypatch.setattr(import_module(f"sparq.tools.{tool}"), "start", start)
    main = getattr(commands, tool)

    assert 7 == main(["/data", "--json"] if tool == "nsq_check" else [])
    assert [OPTIONS[tool]] == [type(options) for options in given]


@pytest.mark.parametrize("tool", [tool for tool in OPTIONS if tool != "nsq_check"])
def test_every_flag_is_explained(tool: str) -> None:
    """Each flag has a help text."""
    assert [] == [flag.name for flag in flags_of(OPTIONS[tool]) if not flag.help]


def test_nsq_check_exits_with_2_if_it_could_not_check(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Status 1 would mean that it has found damage; an error is status 2."""
    with pytest.raises(SystemExit) as ended:
        commands.nsq_check(["/data", "--nope"])

    assert commands.CHECK_FAILED == ended.value.code
    assert capsys.readouterr().err == "nsq_check: unrecognized arguments: --nope\n"
