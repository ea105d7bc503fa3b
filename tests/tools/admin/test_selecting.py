"""`sparq admin` changes single messages on three nsqds, one of them dead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sparq.nsqd import message_actions
from sparq.tools.admin import messages
from tests.support.servers import NsqdServer
from tests.tools.admin.conftest import Cluster, Run


@contextmanager
def standard_input(data: bytes) -> Iterator[None]:
    """Make descriptor 0 a pipe with this data."""
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    before = os.dup(0)
    os.dup2(reading, 0)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(reading)


def publish_deferred(nsqd: NsqdServer, count: int) -> list[str]:
    """Publish deferred messages to an nsqd; return the ids of all deferred ones."""
    for number in range(count):
        nsqd.post("/pub?topic=clicks&defer=3600000", b"later %d" % number)
    path = "/channel/messages?topic=clicks&channel=archive&state=deferred&bodies=false"
    return [message["id"] for message in nsqd.get_json(path)["messages"]]


@pytest.mark.parametrize("verb", ["requeue", "finish", "cancel"])
def test_each_message_is_changed_on_its_nsqd(cluster: Cluster, admin: Run, verb: str) -> None:
    """Each message is changed on its nsqd; an unknown id and the dead nsqd are reported."""
    cluster.recreate("clicks", "archive")
    ids = [*publish_deferred(cluster.nsqds[0], 2), *publish_deferred(cluster.nsqds[1], 1)]
    unknown = "0123456789abcdef"
    yes = () if verb == "requeue" else ("--yes",)

    dry = admin(verb, "clicks", "archive", *ids, unknown, "--dry-run")
    assert [2, 1] == [each["deferred_count"] for each in cluster.channels("clicks", "archive")]
    assert (1, "would be") == (dry.status, dry.out[:8])
    assert f"  {unknown}  NOT DONE: no nsqd that answered has it" in dry.out
    ran = admin(verb, "clicks", "archive", *ids, unknown, *yes)
    past = {"requeue": "requeued", "finish": "finished", "cancel": "cancelled"}[verb]
    assert f"{past}: 3 of 4 messages of channel archive of topic clicks" == ran.out.splitlines()[0]
    assert f"  {cluster.nsqds[0].http}  2" in ran.out
    assert f"  {cluster.nsqds[1].http}  1" in ran.out
    assert f"  {unknown}  NOT DONE:" in ran.out
    assert (1, f"{cluster.dead}: connection refused" in ran.out) == (ran.status, True)
    flags = " ".join([*yes, f"--nsqd-http-address={cluster.dead}"])
    again = f"sparq admin {verb} clicks archive {unknown} {flags}"
    assert again in ran.out
    expected = [(2, 0), (1, 0)] if verb == "requeue" else [(0, 0), (0, 0)]
    assert expected == [
        (each["depth"], each["deferred_count"]) for each in cluster.channels("clicks", "archive")
    ]


def test_ids_from_find_are_read_from_standard_input(cluster: Cluster, admin: Run) -> None:
    """`copy -` and `finish -` read the output of `find --ids`; if all succeed the status is 0."""
    cluster.recreate("orders", "c", messages=5, dead=False)
    cluster.recreate("copies", dead=False)
    ids = admin("find", "orders", "--where=n >= 3", "--ids").out

    with standard_input(ids.encode()):
        copied = admin("copy", "orders", "-", "--to=copies")
    assert (0, "copied: 4 of 4 messages of topic orders") == (
        *(copied.status, copied.out.splitlines()[0]),
    )
    assert [2, 2] == [len(some) for some in cluster.ids("copies")]
    with standard_input(ids.encode()):
        ran = admin("finish", "orders", "c", "-", "--yes", "--json")
    assert (0, "done", {*ids.split()}) == (
        *(ran.status, ran.document["result"], {*ran.document["done"]}),
    )
    assert [3, 3] == cluster.depths("orders", "c")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["requeue", "orders", "c", "12"], '"12" is not a message id'),
        (["requeue", "orders", "c", "0" * 15 + "\x1b"], "is not a message id"),
        (["finish", "orders", "c", "-"], "no ids on standard input"),
        (["copy", "orders", "0" * 16], '--to takes the topic to copy to, not ""'),
        (["copy", "orders", "0" * 16, "--to=a b"], "--to takes the topic to copy to"),
        (["finish", "orders", "c", "0" * 16], "this drops 1 messages of channel c of topic orders"),
        (["requeue", "orders", "c"], "takes TOPIC CHANNEL ID...|-"),
    ],
)
def test_a_usage_error_is_one_sentence(
    cluster: Cluster, admin: Run, words: list[str], why: str
) -> None:
    """The error says what is wrong, and nothing is done."""
    cluster.recreate("orders", "c", dead=False)

    with standard_input(b""):
        ran = admin(*words)

    assert 1 == ran.status
    assert why in ran.err
    assert "\x1b" not in ran.err


@pytest.mark.parametrize("turned", [False, True])
def test_the_reason_comes_from_the_nsqd_that_has_the_message(turned: bool) -> None:
    """Other nsqds only report a foreign id, before or after that answer."""
    assert message_actions.OTHER_NODE == messages.OTHER_NODE
    ids = "0" * 16, "1" * 16
    answers = [
        {"done": [], "refused": [{"id": each, "why": messages.OTHER_NODE} for each in ids]},
        {"done": [], "refused": [{"id": ids[0], "why": "in flight"}, {"id": 5, "why": "x"}]},
    ]
    refused: dict[str, str] = {}
    for answer in answers[::-1] if turned else answers:
        messages.read_selection("a:1", answer, {}, refused)

    assert {ids[0]: "in flight", ids[1]: messages.OTHER_NODE} == refused
