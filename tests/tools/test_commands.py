"""Command lines of tools: flags, client options and errors; when a tool's module is loaded."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sparq.options.declare import option
from sparq.options.kinds import INT
from sparq.tools import commands
from sparq.tools.commands import ConsumeOptions
from tests.support.tool_options import parse


def test_nsq_check_exits_with_2_if_it_could_not_check(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Status 1 would mean that it has found damage; an error is status 2."""
    assert commands.CHECK_FAILED == commands.nsq_check(["/data", "--nope"])
    said = "nsq_check: there is no flag --nope: see nsq_check --help\n"
    assert said == capsys.readouterr().err
    assert commands.CHECK_FAILED == commands.nsq_check([])
    assert "nsq_check: takes one word, nsqd's --data-path\n" == capsys.readouterr().err


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
