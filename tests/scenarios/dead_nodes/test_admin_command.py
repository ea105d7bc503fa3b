"""Every verb of `sparq admin` on three real nsqds, one of which has been killed.

Verbs are run in three ways: with an nsqlookupd that still lists the killed nsqd, with one that
does not (`--expect-nodes` then makes it a failure), and with the nsqds' addresses. Each time the
status is 1, the action is done at both live nsqds, and the output names the nsqd where it was not
done and what to do next.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest

from sparq.tools.admin.verbs import VERBS
from tests.scenarios.dead_nodes.killed import ClusterWithDeadNsqd, three_nsqds
from tests.tools.admin.conftest import Ran, call

TOPIC, DEAD, IDS = "TOPIC", "DEAD", "IDS"
COPIES, READ = "copies", "read"
BEFORE = {"topic_paused": False, "paused": False, "waiting": 2, "deferred": 1}


class Row(NamedTuple):
    """A verb, its words, its flags, and the state of the live nsqds afterwards."""

    verb: str
    words: tuple[str, ...]
    flags: tuple[str, ...] = ()
    after: dict[str, Any] = BEFORE
    past: str = ""

    @property
    def name(self) -> str:
        """The name of the case and its topic."""
        return f"{self.verb}-{len(self.words)}"


CHANNEL, LOST = (TOPIC, "archive"), ("--yes",)
NO_CHANNEL = {"topic_paused": False}
READ_ONLY = (
    Row("list", ()),
    Row("list", (TOPIC,)),
    Row("list", CHANNEL),
    Row("peek", (TOPIC,)),
    Row("peek", CHANNEL),
    Row("find", (TOPIC,), ("--where=n >= 2",)),
    Row("find", CHANNEL, ("--where=n >= 2",)),
    Row("export", (TOPIC,)),
    Row("export", CHANNEL),
    Row("policies", ("show", TOPIC)),
)
CHANGES = (
    Row("pause", (TOPIC,), (), {**BEFORE, "topic_paused": True}, "paused"),
    Row("pause", CHANNEL, (), {**BEFORE, "paused": True}, "paused"),
    Row("unpause", (TOPIC,), (), BEFORE, "unpaused"),
    Row("unpause", CHANNEL, (), BEFORE, "unpaused"),
    Row("empty", (TOPIC,), LOST, BEFORE, "emptied"),
    Row("empty", CHANNEL, LOST, {**BEFORE, "waiting": 0, "deferred": 0}, "emptied"),
    Row("delete", (TOPIC,), LOST, {}, "deleted"),
    Row("delete", CHANNEL, LOST, NO_CHANNEL, "deleted"),
    Row("create", CHANNEL, (), BEFORE, "created"),
    Row("seek", (*CHANNEL, "latest"), LOST, {**BEFORE, "waiting": 0, "deferred": 0}, "moved"),
)
SINGLE = (
    Row("requeue", (*CHANNEL, IDS), (), {**BEFORE, "waiting": 3, "deferred": 0}, "requeued"),
    Row("finish", (*CHANNEL, IDS), LOST, {**BEFORE, "deferred": 0}, "finished"),
    Row("cancel", (*CHANNEL, IDS), LOST, {**BEFORE, "deferred": 0}, "cancelled"),
    Row("copy", (TOPIC, IDS), (f"--to={COPIES}",), BEFORE, "copied"),
)
TOMBSTONE = Row("tombstone", (TOPIC, DEAD), LOST, BEFORE, "tombstoned")
WAYS = ("listed", "forgotten", "given")
CASES = [
    *product((*READ_ONLY, *CHANGES, *SINGLE, TOMBSTONE), ("listed",), ((), ("--json",))),
    *product((*CHANGES, *SINGLE, TOMBSTONE), ("listed",), (("--dry-run",),)),
    *product((READ_ONLY[2], CHANGES[1], SINGLE[0]), WAYS[1:], ((),)),
    (CHANGES[1], "listed", ("--dry-run", "--json")),
]
"""Each verb in each mode, and one of each kind in each way: they do not depend on each other."""


def topic_of(row: Row, way: str, mode: tuple[str, ...]) -> str:
    """The topic of this case: a separate one if the verb changes anything."""
    return READ if row in READ_ONLY else ".".join((row.name, way, *mode)).replace("--", "")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterWithDeadNsqd]:
    """The daemons, with a topic for each case."""
    topics = dict.fromkeys(topic_of(*case) for case in CASES)
    with three_nsqds(tmp_path_factory.mktemp("killed"), topics) as found:
        yield found


def cluster_flags(cluster: ClusterWithDeadNsqd, way: str) -> list[str]:
    """The flags that name the cluster."""
    if way == "listed":
        return [f"--lookupd-http-address={cluster.unaware.http}"]
    if way == "forgotten":
        return [f"--lookupd-http-address={cluster.aware.http}", "--expect-nodes=3"]
    addresses = (*(nsqd.http for nsqd in cluster.alive), cluster.dead)
    return [f"--nsqd-http-address={address}" for address in addresses]


def command(cluster: ClusterWithDeadNsqd, row: Row, topic: str, *more: str) -> list[str]:
    """The words and the flags of a row."""
    places = {TOPIC: [topic], DEAD: [cluster.dead], IDS: cluster.ids.get(topic, [])}
    words = [each for word in row.words for each in places.get(word, [word])]
    return [row.verb, *words, *row.flags, *more]


def case_name(value: Any) -> str:
    """The name of a row, a way or a mode."""
    return value.name if isinstance(value, Row) else "".join(value) or "plain"


def test_each_verb_is_in_the_table() -> None:
    """The table has every verb except those tested elsewhere.

    These do not query the nsqds, name one nsqd only, or need dead letters; `audit` is tested below.
    """
    elsewhere = {"audit", "completion", "dismiss", "drain", "move", "redrive"}
    assert {*VERBS} - elsewhere == {row.verb for row, *_ in CASES}


@pytest.mark.parametrize(("row", "way", "mode"), CASES, ids=case_name)
def test_a_verb_is_done_at_the_live_nsqds(
    cluster: ClusterWithDeadNsqd,
    capfd: pytest.CaptureFixture[str],
    row: Row,
    way: str,
    mode: tuple[str, ...],
) -> None:
    """A verb exits with 1 and is done at the live nsqds; a dry run or a query changes nothing."""
    topic = topic_of(row, way, mode)
    before = cluster.state(topic)

    ran = call(capfd, *command(cluster, row, topic, *mode, *cluster_flags(cluster, way)))

    assert [BEFORE] * 2 == before
    is_dry = "--dry-run" in mode
    assert [BEFORE if is_dry else row.after] * 2 == cluster.state(topic)
    assert (1, False) == (ran.status, "Traceback" in ran.err)
    check_error(cluster, row, way, ran, is_dry=is_dry)
    if row in READ_ONLY:
        check_data(cluster, row, ran, mode)
    elif "--json" in mode:
        check_json(cluster, row, way, ran, is_dry=is_dry)
    else:
        check_text(cluster, row, way, ran, is_dry=is_dry)


def check_error(
    cluster: ClusterWithDeadNsqd, row: Row, way: str, ran: Ran, *, is_dry: bool
) -> None:
    """Check that the output names the dead nsqd, the reason, and a command for that nsqd alone."""
    told = ran.out + ran.err
    if way == "forgotten":
        assert f"sparq admin {row.verb}: found 2 of 3 expected nsqds (" in ran.err
        assert all(nsqd.http in ran.err for nsqd in cluster.alive)
        assert "start the others, then run this again\n" in ran.err
        assert cluster.dead not in told
        return
    assert "connection refused" in told
    assert f"nsqd {cluster.dead}: start the nsqd, or find out why it cannot be reached" in told
    assert f"sparq admin {row.verb} " in told
    assert f"--nsqd-http-address={cluster.dead}" in told
    comes_back = row.verb in ("delete", "tombstone") and not is_dry
    assert comes_back == ("was down still has what it did not delete" in told)


def check_data(cluster: ClusterWithDeadNsqd, row: Row, ran: Ran, mode: tuple[str, ...]) -> None:
    """Check that the output has both live nsqds' data, as sums or by name."""
    is_sum = row.verb == "list" and len(row.words) < 2
    if row.verb == "export":
        nodes = {json.loads(line)["node"] for line in ran.out.splitlines()}
    elif mode:
        document = ran.document
        rows = document.get("rows", document.get("messages"))
        nodes = {found.get("node", found.get("nsqd")) for found in rows}
        rows = [found for found in rows if found.get("topic", READ) == READ]
        assert {2} == {found.get("nsqds", 2) for found in rows}
    else:
        nodes = {nsqd.http for nsqd in cluster.alive if nsqd.http in ran.out}
    assert ({*()} if is_sum else {nsqd.http for nsqd in cluster.alive}) == nodes - {None}


def check_json(cluster: ClusterWithDeadNsqd, row: Row, way: str, ran: Ran, *, is_dry: bool) -> None:
    """Check the JSON: errors, next steps, and both live nsqds as done or planned."""
    document = ran.document
    errors = {} if way == "forgotten" else {cluster.dead: "connection refused"}
    assert (row.verb, is_dry, errors) == tuple(
        document[key] for key in ("verb", "dry_run", "errors")
    )
    assert bool(errors) == any(cluster.dead in line for line in document["next"])
    if row.verb == "tombstone":
        return
    if row in SINGLE:
        here = {nsqd.http for nsqd in cluster.alive}
        assert ("partly", here) == (document["result"], {*document["done"].values()})
        assert cluster.ids[document["topic"]][2:] == [*document["refused"]]
        return
    key = "plan" if "plan" in document else "rows" if "rows" in document else "steps"
    done = [found for found in document[key] if found.get("done", True)]
    daemons = {found.get("daemon", found.get("nsqd")) for found in done}
    assert {nsqd.http for nsqd in cluster.alive} <= daemons
    assert cluster.dead not in daemons
    result = "partly" if errors else "done"
    assert result == document.get("result", result)


def check_text(cluster: ClusterWithDeadNsqd, row: Row, way: str, ran: Ran, *, is_dry: bool) -> None:
    """Check the text: a summary, in the past tense if it was done, and a line for each nsqd."""
    part = "" if way == "forgotten" or row in SINGLE else " in part"
    if not is_dry:
        assert f"{row.past}{part}: " in ran.out.splitlines()[0]
    elif row.verb == "seek":
        assert ran.out.startswith("dry run: would move channel archive of ")
    elif row in SINGLE:
        assert ran.out.startswith(f"would be {row.past}: ")
    else:
        assert ["DAEMON", "WOULD", "LEFT"] == ran.rows[0]
    if row.verb != "tombstone":
        lines = [line for line in ran.out.splitlines() if "NOT DONE" not in line]
        for nsqd in cluster.alive:
            assert any(line.strip().startswith(nsqd.http) for line in lines)
    if row in SINGLE:
        assert "2 of 3 messages" in ran.out


def test_the_suggested_command_completes_the_action(
    cluster: ClusterWithDeadNsqd, capfd: pytest.CaptureFixture[str]
) -> None:
    """The suggested command works on an nsqd that is back; here a live nsqd takes its place."""
    topic = topic_of(CHANGES[2], "listed", ())
    ran = call(capfd, "pause", topic, *cluster_flags(cluster, "listed"))
    (line,) = (line for line in ran.out.splitlines() if "sparq admin pause" in line)
    again = line.replace(cluster.dead, cluster.alive[0].http).split()[2:]

    assert 0 == call(capfd, *again).status
    assert 0 == call(capfd, "unpause", *again[1:]).status
    assert [False, True] == [state["topic_paused"] for state in cluster.state(topic)]
    call(capfd, "unpause", topic, *cluster_flags(cluster, "listed"))
