"""`sparq admin policies` shows, exports, sets and drops policies on all live nsqds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import NsqdServer
from tests.tools.admin.conftest import Cluster, Run

TOML = """[[policies]]
topic = "limited*"
max_channels = 2

[[policies]]
topic = "*"
channel = "slow"
max_channel_lag_time = "24h0m0s"
"""


@pytest.fixture(autouse=True)
def _no_policies(cluster: Cluster) -> Iterator[None]:
    """Delete the policies before and after each test."""
    for nsqd in cluster.nsqds:
        nsqd.request("DELETE", "/policies")
    yield
    for nsqd in cluster.nsqds:
        nsqd.request("DELETE", "/policies")


def alive(cluster: Cluster) -> list[str]:
    """Return the flags that name the live nsqds."""
    return [f"--nsqd-http-address={nsqd.http}" for nsqd in cluster.nsqds]


def held(nsqd: NsqdServer) -> list[str]:
    return [policy["topic"] for policy in nsqd.get_json("/policies")["policies"]]


def test_an_applied_file_is_exported_unchanged(
    cluster: Cluster, admin: Run, tmp_path: Path
) -> None:
    """A dry run shows each nsqd's changes; an export equals the applied file."""
    cluster.recreate("limited.policies", dead=False)
    file = tmp_path / "policies.toml"
    file.write_text(TOML)

    ran = admin("policies", "apply", str(file), "--dry-run", *alive(cluster))
    assert (0, "") == (ran.status, ran.err)
    assert "would be set at 2 nsqds: 2 settings of topics and channels change" in ran.out
    assert [[], []] == [held(nsqd) for nsqd in cluster.nsqds]
    ran = admin("policies", "apply", str(file), *alive(cluster))
    assert (0, "") == (ran.status, ran.err)
    assert "set at 2 nsqds: 2 settings of topics and channels change" == ran.out.splitlines()[0]
    changed = [row for row in ran.rows if "max_channels" in row]
    assert [["limited.policies", "-", "max_channels", "0", "2"]] * 2 == [row[1:] for row in changed]
    assert [["limited*", "*"]] * 2 == [held(nsqd) for nsqd in cluster.nsqds]
    ran = admin("policies", "export", *alive(cluster))
    assert (0, TOML, "") == (ran.status, ran.out, ran.err)
    ran = admin("policies", "apply", str(file), "--json", *alive(cluster))
    assert ("done", 0, []) == tuple(ran.document[key] for key in ("result", "changed", "changes"))


def test_an_invalid_document_changes_no_nsqd(cluster: Cluster, admin: Run, tmp_path: Path) -> None:
    """No nsqd is changed, and the error names the policy."""
    file = tmp_path / "policies.toml"
    file.write_text('[[policies]]\ntopic = "a"\nmax_chanels = 1\n')

    ran = admin("policies", "apply", str(file), *alive(cluster))
    assert (1, "") == (ran.status, ran.out)
    assert "nothing was done" in ran.err
    assert "policy 1: unknown setting max_chanels: did you mean max_channels?" in ran.err
    missing = admin("policies", "apply", str(tmp_path / "none"), *alive(cluster))
    assert "none: no such file or directory" in missing.err
    for words in (("apply",), ("show",), ("nonsense",), ("drop", "it"), ("show", "a b")):
        assert 1 == admin("policies", *words, *alive(cluster)).status
    assert [[], []] == [held(nsqd) for nsqd in cluster.nsqds]


def test_the_list_shows_where_nsqds_differ(cluster: Cluster, admin: Run) -> None:
    """nsqds with equal policies share a row; `export` fails if they differ."""
    first, second = cluster.nsqds
    same = b'{"policies": [{"topic": "a", "max_channels": 1}]}'
    for nsqd in cluster.nsqds:
        assert 200 == nsqd.request("PUT", "/policies", same)[0]

    ran = admin("policies", *alive(cluster))
    row = {"source": "run time", "topic": "a", "channel": "", "settings": "max_channels=1"}
    both = [", ".join(cluster.alive)]
    document = admin("policies", "--json", *alive(cluster)).document
    assert [{"nsqds": both[0], **row, "number": 1}] == document["rows"]
    assert "differ" not in ran.out
    assert 200 == first.request("DELETE", "/policies")[0]
    ran = admin("policies", *alive(cluster))
    assert "policies set at run time differ" in ran.out
    assert [second.http] == [line.split()[0] for line in ran.out.splitlines() if "=1" in line]
    ran = admin("policies", "export", *alive(cluster))
    assert (1, "") == (ran.status, ran.out)
    assert "differ between nsqds" in ran.err
    ran = admin("policies", "export", alive(cluster)[1])
    assert '[[policies]]\ntopic = "a"\nmax_channels = 1\n' == ran.out
    assert (
        "# no policies were set at run time\n" == admin("policies", "export", alive(cluster)[0]).out
    )


def test_a_topics_values_are_shown_with_their_source(cluster: Cluster, admin: Run) -> None:
    """Each nsqd's value is shown with its source."""
    first = cluster.nsqds[0]
    body = b'{"policies": [{"topic": "a*", "channel": "c", "max_channel_consumers": 3}]}'
    assert 200 == first.request("PUT", "/policies", body)[0]

    ran = admin("policies", "show", "abc", "c", "--json", *alive(cluster))
    told = [r for r in ran.document["rows"] if r["setting"] == "max_channel_consumers"]
    assert [(3, "run time", 1), (0, "flag", None)] == [
        (row["value"], row["source"], row["number"]) for row in told
    ]
    assert "retention_time" in admin("policies", "show", "abc", *alive(cluster)).out


def test_dropping_policies_requires_yes(cluster: Cluster, admin: Run) -> None:
    """Without `--yes` nothing is dropped: messages that policies protect might be deleted."""
    body = b'{"policies": [{"topic": "a", "max_channels": 1}]}'
    for nsqd in cluster.nsqds:
        assert 200 == nsqd.request("PUT", "/policies", body)[0]

    assert "would be dropped at 2" in admin("policies", "drop", "--dry-run", *alive(cluster)).out
    ran = admin("policies", "drop", *alive(cluster))
    assert 1 == ran.status
    assert "this drops the policies set at run time" in ran.err
    assert [["a"]] * 2 == [held(nsqd) for nsqd in cluster.nsqds]
    ran = admin("policies", "drop", "--yes", *alive(cluster))
    assert (0, "") == (ran.status, ran.err)
    assert [[], []] == [held(nsqd) for nsqd in cluster.nsqds]


def test_gos_nsqd_does_not_support_policies(
    cluster: Cluster, admin: Run, tmp_path: Path, old_nsqd: str
) -> None:
    """Go's nsqd is reported as not supporting policies; sparq's nsqd is changed."""
    file = tmp_path / "policies.toml"
    file.write_text(TOML)
    given = [alive(cluster)[0], f"--nsqd-http-address={old_nsqd}"]
    ran = admin("policies", "apply", str(file), *given)
    assert 1 == ran.status
    assert "set at 1 nsqds" in ran.out
    assert f"{old_nsqd}: it does not support this: Go's nsqd, or an older version" in ran.out
    ran = admin("policies", *given)
    assert 1 == ran.status
    assert "it does not support this" in ran.err
