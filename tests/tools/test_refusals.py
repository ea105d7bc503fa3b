"""What each tool refuses before it makes a connection: status 1, and one line with the reason."""

from __future__ import annotations

import pytest

from sparq.tools import commands
from tests.tools.forwarding import log_settings_restored

NSQD, HTTP = "--nsqd-tcp-address=h:1", "--nsqd-http-address=h:1"
TO = "--destination-nsqd-tcp-address=127.0.0.1:1"
POST = "--post=http://h"
SAME = "--destination-nsqd-tcp-address=h:1"
BOTH = "use --nsqd-tcp-address or --lookupd-http-address not both"
NEITHER = "--nsqd-tcp-address or --lookupd-http-address required"

TABLE = {
    "top": (
        ("", "--nsqd-http-address or --lookupd-http-address required"),
        (f"{HTTP} --lookupd-http-address=b:1", "use --nsqd-http-address or --lookupd-http-address"),
        ("--nsqd-http-address=a", "--nsqd-http-address=a is not an address: write host:port or"),
        ("--nsqd-http-address=", "--nsqd-http-address or --lookupd-http-address required"),
        (f"{HTTP} --interval=0s", "--interval=0s should be positive"),
        (f"{HTTP} --topic=a/b", "--topic=a/b is not a valid name"),
        (f"{HTTP} --sort=flight", "--sort=flight: column must be one of topic, channel, in"),
    ),
    "nsq_stat": (
        ("--topic= --channel=c", "--topic and --channel are required"),
        ("--topic=t", "--topic and --channel are required"),
        ("--topic=t --channel=c", "--nsqd-http-address or --lookupd-http-address required"),
        ("--interval=-1s", "--interval=-1s should be positive"),
        ("--count=0", "--count=0 is too small: use 1 or more"),
        (
            f"--topic=t --channel=c {HTTP} --lookupd-http-address=b:1",
            "use --nsqd-http-address or --lookupd-http-address not both",
        ),
    ),
    "nsq_tail": (
        ("", NEITHER),
        (f"{NSQD} --lookupd-http-address=b:1 --topic=t", BOTH),
        (NSQD, "--topic required"),
        (f"{NSQD} --topic=", '--topic="" is not a valid name'),
        (f"{NSQD} --topic=t --channel=#", "--channel=# is not a valid name"),
        ("--nsqd-tcp-address=a --topic=t", "--nsqd-tcp-address=a is not an address: write host"),
        ("--nsqd-tcp-address= --topic=t", NEITHER),
        ("--lookupd-http-address=ftp://a:1", "--lookupd-http-address=ftp://a:1 is not an add"),
        (f"{NSQD} --topic=t --max-in-flight=0", "--max-in-flight=0 is too small: use 1 or more"),
        (
            f"{NSQD} --topic=t --consumer-opt=max_in_flight,0",
            "--consumer-opt max_in_flight should be positive",
        ),
    ),
    "to_nsq": (
        ("", "--topic required"),
        ("--topic=t --delimiter=ab", "--delimiter=ab must be a single byte"),
        ("--topic=t --delimiter=é", '--delimiter="é" must be a single byte'),
        ("--topic=t", "--nsqd-tcp-address required"),
    ),
    "nsq_to_file": (
        (NSQD, "--topic or --topic-pattern required"),
        ("--topic=t", NEITHER),
        (f"{NSQD} --topic-pattern=.", "--lookupd-http-address must be specified when no --topic"),
        (f"{NSQD} --topic=t --topic-pattern=x", "--topic-pattern matches no --topic"),
        (f"{NSQD} --topic=t --topic-pattern=(", '--topic-pattern "("'),
        (f"{NSQD} --topic=t --channel=", "--channel is required"),
        (f"{NSQD} --topic=t --gzip-level=0", "--gzip-level=0 is too small: use 1 or more"),
        (f"{NSQD} --topic=t --gzip --filename-format=x", "--filename-format: missing <REV>"),
        (
            f"{NSQD} --topic=t --filename-format=../x",
            "--filename-format: the file name '../x' leads out",
        ),
        (f"{NSQD} --topic=t --filename-format={'a' * 300}", "--filename-format: the file name aa"),
        (f"{NSQD} --topic=t --output-dir=/dev/null/x", '--output-dir "/dev/null/x": not a dir'),
        (f"{NSQD} --topic=t --work-dir=/dev/null", '--work-dir "/dev/null": not a directory'),
    ),
    "nsq_to_http": (
        (f"{NSQD} {POST}", "--topic and --channel are required"),
        (f"{POST} --topic=t", NEITHER),
        (f"{NSQD} --topic=t", "--get or --post required"),
        (f"{NSQD} --topic=t {POST} --get=http://h/%s", "use --get or --post not both"),
        (
            f"{NSQD} --topic=t --get=http://h/%s --content-type=a/b",
            "--content-type is valid with --post only",
        ),
        (f"{NSQD} --topic=t {POST} --sample=1.5", "--sample=1.5 is too large: use 1 or less"),
        (f"{NSQD} --topic=t {POST} --mode=all", "--mode=all is unknown: use round-robin, hostpool"),
        (f"{NSQD} --topic=t {POST} --header=none", "--header takes 'Name: value': header 1"),
        (f"{NSQD} --topic=t --post=h", "--post takes a URL that begins with http"),
    ),
    "nsq_to_nsq": (
        (f"{NSQD} {TO}", "--topic and --channel are required"),
        (f"{NSQD} --topic=t", "--destination-nsqd-tcp-address required"),
        (f"{TO} --topic=t", NEITHER),
        (f"{NSQD} {TO} --topic=t --destination-topic=a/b", "--destination-topic=a/b is not a va"),
        (f"{NSQD} {SAME} --topic=s --topic=t --destination-topic=t", SAME[:30]),
        (f"{NSQD} {SAME} --topic=t", f"{SAME[:30]}: a topic would be copied to itself"),
        (f"{NSQD} {TO} --topic=t --status-every=-1", "--status-every=-1 is too small: use 0"),
        (
            f"{NSQD} {TO} --topic=t --require-json-value=x",
            "--require-json-value is valid with --require-json-field only",
        ),
    ),
}


@pytest.mark.parametrize(
    ("tool", "words", "reason"), [(tool, *row) for tool, rows in TABLE.items() for row in rows]
)
def test_invalid_values_are_refused(
    capsys: pytest.CaptureFixture[str], tool: str, words: str, reason: str
) -> None:
    """The line names the flag; NSQ's wording is kept where NSQ refuses the same."""
    try:
        with log_settings_restored():
            status: int | str | None = getattr(commands, tool)(words.split())
    except SystemExit as ended:  # raised by the parser
        status = ended.code

    said = capsys.readouterr().err
    name = "sparq top" if tool == "top" else tool
    assert (1, 1) == (status, said.count("\n"))
    assert said.startswith(f"{name}: {reason}")
