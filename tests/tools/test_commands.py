"""Command lines of tools: flags, client options and errors; when a tool's module is loaded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest

from sparq.options.declare import flags_of, option
from sparq.options.kinds import INT
from sparq.tools import commands
from sparq.tools.commands import ConsumeOptions, parse

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

    async def serve(options: Any, _: asyncio.Event) -> int:
        return start(options)

    module = import_module(f"sparq.tools.{tool}")
    monkeypatch.setattr(module, *(("start", start) if tool == "nsq_check" else ("serve", serve)))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ConsumeOptions):
    """A tool's options: those of every consumer and `--n`."""

    n: int = option(0, "how many", kind=INT)


def test_flags_of_a_consumer_and_of_the_tool_are_parsed() -> None:
    """Flags of a consumer and of the tool are parsed; address flags may be repeated."""
    words = ["-nsqd-tcp-address=a:1", "--nsqd-tcp-address", "b:2", "-n=3", "--consumer-opt=tls_v1"]

    options = parse(Options, "tool", words)

    assert (("a:1", "b:2"), (), 3) == (
        options.nsqd_tcp_addresses,
        options.lookupd_http_addresses,
        options.n,
    )
    assert ("tls_v1",) == options.consumer_opt


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["max_in_fligth,3"], "invalid option max_in_fligth (did you mean max_in_flight?)"),
        (["max_in_flight,many"], "max_in_flight"),
        (["sample_rate,100"], "sample_rate must be from 0 to 99, not 100"),
        (["snappy", "deflate"], "snappy and deflate cannot be combined"),
        (["auth_secret,hush", "nothing"], "invalid option nothing"),
    ],
)
def test_an_invalid_client_option_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], given: list[str], reason: str
) -> None:
    """Status 1, and one line that names the flag and the option; a secret is not printed."""
    with pytest.raises(SystemExit) as ended:
        parse(Options, "tool", [f"--consumer-opt={text}" for text in given])

    said = capsys.readouterr().err
    assert 1 == ended.value.code
    assert said.startswith("tool: --consumer-opt: ")
    assert reason in said
    assert 1 == said.count("\n")
    assert "hush" not in said


def test_an_argument_that_is_no_flag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Such a word is an error; NSQ's tools silently ignore it and all flags after it."""
    with pytest.raises(SystemExit) as ended:
        parse(Options, "tool", ["--consumer-opt=snappy", "true", "--consumer-opt=deflate"])

    said = capsys.readouterr().err
    assert 1 == ended.value.code
    assert 1 == said.count("\n")
    assert said.startswith("tool: ")
    assert "true" in said
