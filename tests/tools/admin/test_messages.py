"""`sparq admin` moves channels and handles single messages on three nsqds, one of them dead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.servers import NsqdServer
from tests.tools.admin.conftest import Cluster, Run


@contextmanager
def standard_input(data: bytes) -> Iterator[None]:
    """Have these bytes come from descriptor 0."""
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


def waiting(cluster: Cluster) -> list[int]:
    return cluster.depths("clicks", "archive")


def test_a_channel_goes_back(cluster: Cluster, admin: Run) -> None:
    """`seek`: where it lands at each nsqd and what comes again; the dead one is named."""
    cluster.fresh("clicks", "archive")
    # What some channel still needs stays in the log.
    cluster.post("/channel/create?topic=clicks&channel=keeper")
    cluster.post("/mpub?topic=clicks", b"1\n2\n3")
    cluster.nsqds[0].post("/channel/empty?topic=clicks&channel=archive")

    dry = admin("seek", "clicks", "archive", "earliest", "--dry-run")
    assert [0, 3] == waiting(cluster)
    assert (1, "would be moved: channel archive of topic clicks to earliest") == (
        *(dry.status, dry.out.splitlines()[0]),
    )
    ran = admin("seek", "clicks", "archive", "earliest")
    assert [3, 3] == waiting(cluster)
    assert (1, "moved in part: channel archive of topic clicks to earliest") == (
        *(ran.status, ran.out.splitlines()[0]),
    )
    rows = {row[0]: row[-3:] for row in ran.rows if row}
    assert ["3", "0", "3"] == rows[cluster.nsqds[0].http]
    assert ["0", "0", "3"] == rows[cluster.nsqds[1].http]
    assert f"{cluster.dead}: connection refused" in ran.out
    assert f"sparq admin seek clicks archive earliest --nsqd-http-address={cluster.dead}" in ran.out


def test_messages_that_a_seek_skips_are_named_first(cluster: Cluster, admin: Run) -> None:
    """Nobody types the name here: nothing is done without `--yes`."""
    cluster.fresh("clicks", "archive", messages=3)

    ran = admin("seek", "clicks", "archive", "latest")
    assert (1, [3, 3]) == (ran.status, waiting(cluster))
    assert (
        "this skips 6 messages of channel archive of topic clicks: not confirmed, nothing was done"
        in ran.err
    )
    ran = admin("seek", "clicks", "archive", "latest", "--yes", "--json")
    assert [0, 0] == waiting(cluster)
    assert ("partly", [3, 3]) == (
        *(ran.document["result"], [row["skipped"] for row in ran.document["rows"]]),
    )


def test_places_may_begin_with_a_dash(cluster: Cluster, admin: Run) -> None:
    """`-1h` is a place and no flag; one that is none is refused by each nsqd."""
    cluster.fresh("orders", "c", messages=1, dead=False)

    assert 0 == admin("seek", "orders", "c", "-1h").status
    ran = admin("seek", "orders", "c", "yesterday")
    assert 1 == ran.status
    assert "not moved" in ran.out
    assert "INVALID_ARG_TO" in ran.out


def hold(nsqd: NsqdServer, count: int) -> list[str]:
    """Defer messages at an nsqd; their ids."""
    for number in range(count):
        nsqd.post("/pub?topic=clicks&defer=3600000", b"later %d" % number)
    path = "/channel/messages?topic=clicks&channel=archive&state=deferred&bodies=false"
    return [message["id"] for message in nsqd.get_json(path)["messages"]]


@pytest.mark.parametrize("verb", ["requeue", "finish", "cancel"])
def test_single_messages(cluster: Cluster, admin: Run, verb: str) -> None:
    """Done where they are; an id that nobody has is named, and so is the dead nsqd."""
    cluster.fresh("clicks", "archive")
    ids = [*hold(cluster.nsqds[0], 2), *hold(cluster.nsqds[1], 1)]
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


def test_what_is_found_is_handled(cluster: Cluster, admin: Run) -> None:
    """`find --ids` into `copy -` and `finish -`; all done, all nsqds there: status 0."""
    cluster.fresh("orders", "c", messages=5, dead=False)
    cluster.fresh("copies", dead=False)
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
def test_a_mistake_is_one_sentence(
    cluster: Cluster, admin: Run, words: list[str], why: str
) -> None:
    """Nothing is done."""
    cluster.fresh("orders", "c", dead=False)

    with standard_input(b""):
        ran = admin(*words)

    assert 1 == ran.status
    assert why in ran.err
    assert "\x1b" not in ran.err


def test_a_typed_name(cluster: Cluster, admin: Run) -> None:
    """On a terminal the name is asked for: the right one does it, another one nothing."""
    cluster.fresh("orders", "c", messages=1, dead=False)
    main, side = os.openpty()
    before = os.dup(0)
    os.dup2(side, 0)
    try:
        os.write(main, b"orders\n")
        wrong = admin("empty", "orders", "c")
        assert (1, [1, 1]) == (wrong.status, cluster.depths("orders", "c"))
        assert (
            "this drops 2 messages of channel c of topic orders.\nType c to confirm:" in wrong.err
        )
        assert "the name does not match: nothing was done" in wrong.err
        os.write(main, b"c\n")
        assert 0 == admin("empty", "orders", "c").status
        assert [0, 0] == cluster.depths("orders", "c")
    finally:
        os.dup2(before, 0)
        for descriptor in (before, main, side):
            os.close(descriptor)
