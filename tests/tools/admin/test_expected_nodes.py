"""nsqds that do not answer: fewer than expected, and the command that completes the action."""

import pytest

from tests.tools.admin.conftest import Cluster, Run


@pytest.mark.parametrize("words", [("list",), ("pause", "expected"), ("peek", "expected", "c")])
def test_fewer_nsqds_than_expected_are_a_failure(
    cluster: Cluster, admin: Run, words: tuple[str, ...]
) -> None:
    """With --expect-nodes a verb counts the nsqds that it finds, names them, and exits with 1."""
    cluster.recreate("expected", "c", messages=1)
    found = cluster.nsqds[0].http
    ran = admin(*words, "--expect-nodes=2", f"--nsqd-http-address={found}")

    assert 1 == ran.status
    assert f"sparq admin {words[0]}: found 1 of 2 expected nsqds ({found})" in ran.err
    assert 0 == admin(*words, "--expect-nodes=1", f"--nsqd-http-address={found}").status


def test_the_suggested_command_completes_the_action(cluster: Cluster, admin: Run) -> None:
    """It works on an nsqd that is back; here a live nsqd takes its place."""
    cluster.recreate("suggested")
    first, second = cluster.nsqds
    ran = admin("pause", "suggested")
    admin("unpause", "suggested")
    (line,) = (line for line in ran.out.splitlines() if "sparq admin pause" in line)
    again = admin(*line.replace(cluster.dead, first.http).split()[2:])

    assert 0 == again.status
    paused = [
        nsqd.get_json("/stats?format=json&topic=suggested")["topics"][0]["paused"]
        for nsqd in (first, second)
    ]
    assert [True, False] == paused
    assert "was down still has what it did not delete" in admin("delete", "suggested", "--yes").out
