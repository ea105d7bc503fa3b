"""The smallest and the largest value of each daemon's flags."""

from __future__ import annotations

import pytest

from sparq.nsqadmin.options import NsqadminOptions
from sparq.nsqd.options import NsqdOptions
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.options.declare import flags_of
from sparq.program.flags import parse

PROGRAMS = {"nsqd": NsqdOptions, "nsqlookupd": NsqlookupdOptions, "nsqadmin": NsqadminOptions}

COUNTS_FROM_0 = {
    "nsqd": """broadcast-http-port broadcast-tcp-port log-repeats max-attempts max-channel-consumers
        max-channel-lag-bytes max-channels max-client-publish-rate max-connections max-publish-rate
        max-topic-bytes max-topic-messages max-topics mem-queue-size min-receive-rate
        retention-bytes""",
    "nsqlookupd": """log-repeats max-connections max-connections-per-address max-names
        max-registrations""",
    "nsqadmin": "http-connections log-repeats",
}
COUNTS_FROM_1 = {
    "nsqd": """max-body-size max-bytes-per-file max-line-size max-msg-size max-output-buffer-size
        max-rdy-count statsd-udp-packet-size sync-every""",
}
TIMES_FROM_0 = {
    "nsqd": """first-command-timeout http-client-connect-timeout http-client-request-timeout
        http-request-timeout max-channel-lag-time max-output-buffer-timeout max-req-timeout
        message-ttl min-output-buffer-timeout output-buffer-timeout retention-time""",
    "nsqlookupd": "http-request-timeout tombstone-lifetime",
    "nsqadmin": "http-request-timeout",
}
TIMES_FROM_1_MS = {
    "nsqd": """e2e-processing-latency-window-time max-heartbeat-interval max-msg-timeout
        msg-timeout statsd-interval sync-timeout""",
    "nsqlookupd": "inactive-producer-timeout",
    "nsqadmin": "http-client-connect-timeout http-client-request-timeout",
}
TIMES_FROM_1_S = {"nsqadmin": "statsd-interval"}

SMALLEST = {
    (program, flag): (allowed, refused)
    for flags, allowed, refused in (
        (COUNTS_FROM_0, "0", "-1"),
        (COUNTS_FROM_1, "1", "0"),
        (TIMES_FROM_0, "0s", "-1ms"),
        (TIMES_FROM_1_MS, "1ms", "0s"),
        (TIMES_FROM_1_S, "1s", "999ms"),
    )
    for program, names in flags.items()
    for flag in names.split()
}
LARGEST = {
    ("nsqd", "broadcast-http-port"): 65_535,
    ("nsqd", "broadcast-tcp-port"): 65_535,
    ("nsqd", "max-attempts"): 65_535,
    ("nsqd", "max-body-size"): 2**31 - 1,
    ("nsqd", "max-msg-size"): 2**31 - 31,
}
"""A frame's size is an i32 and counts 30 bytes besides the body (docs/protocol.md)."""

# Smaller than the defaults of other flags, which must not exceed these.
LOWERS = {
    "max-msg-timeout": ["--msg-timeout=1ms"],
    "max-output-buffer-timeout": [
        "--output-buffer-timeout=0s",
        "--min-output-buffer-timeout=0s",
    ],
}


def accept(program: str, *words: str) -> None:
    parse(PROGRAMS[program], program, words)


def refuse(program: str, *words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        accept(program, *words)
    assert ended.value.code == 1


def test_the_tables_have_every_flag_with_a_bound() -> None:
    """Each flag of a daemon that has a smallest or a largest value is in the tables."""
    flags = [(program, flag) for program, kind in PROGRAMS.items() for flag in flags_of(kind)]

    assert SMALLEST.keys() == {(at, flag.name) for at, flag in flags if flag.least is not None}
    assert LARGEST.keys() == {(at, flag.name) for at, flag in flags if isinstance(flag.most, int)}


@pytest.mark.parametrize(("program", "flag"), SMALLEST)
def test_the_smallest_value(program: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The smallest value is accepted; the next smaller one is refused with the flag's name."""
    allowed, refused = SMALLEST[program, flag]
    accept(program, f"--{flag}={allowed}", *LOWERS.get(flag, []))

    refuse(program, f"--{flag}={refused}")
    expected = f"--{flag}={refused} is too small: use {allowed} or more"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(("program", "flag"), LARGEST)
def test_the_largest_value(program: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The largest value is accepted; the next larger one is refused with the flag's name."""
    allowed = LARGEST[program, flag]
    accept(program, f"--{flag}={allowed}")

    refuse(program, f"--{flag}={allowed + 1}")
    expected = f"--{flag}={allowed + 1} is too large: use {allowed} or less"
    assert expected in capsys.readouterr().err
