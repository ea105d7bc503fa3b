"""A verb of `sparq admin` runs on the cluster that the flags or the environment name."""

from __future__ import annotations

import pytest

from sparq.cli import main
from tests.tools.admin.conftest import Cluster, Run


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ["peek", "orders", "--state=waiting"],
            "--state is waiting, in_flight or deferred, and needs a channel",
        ),
        (["peek", "orders", "c", "--from=earliest"], "--from needs a topic"),
        (["find", "orders", "--attempts=>3"], "--attempts and --state need a channel"),
        (["list", "orders", "--nodes"], "--nodes takes no topic"),
        (["peek", "orders", "--limit=0"], "--limit"),
        (["find", "orders", "--stat=waiting"], "did you mean --state?"),
        (["find", "orders", "--state=wating"], "is unknown: did you mean waiting?"),
        (["peek"], "takes TOPIC [CHANNEL], not nothing"),
        (["peek", "a", "b", "c"], "takes TOPIC [CHANNEL], not a b c"),
        (["list", "--lookupd-http-address=a"], "not an address"),
        (["list", "--nsqd-http-address="], "--lookupd-http-address or --nsqd-http-address"),
        (["list", "--nsqd-http-address=a:1", "--lookupd-http-address=a:1"], "not both"),
        (["list", "--http-client-request-timeout=0s"], "should be positive"),
        (["list", "--token=a b"], "--token must have at most 512 characters"),
        (["list", "--token=@/nowhere"], "--token: /nowhere cannot be read"),
        (["lsit"], "there is no verb lsit: did you mean list?"),
    ],
)
def test_a_usage_error_is_one_sentence(admin: Run, words: list[str], why: str) -> None:
    """The error contains the correct usage."""
    ran = admin(*words)

    assert 1 == ran.status
    assert why in ran.err
    assert 1 == ran.err.count("\n")


def test_expect_nodes_detects_a_missing_nsqd(cluster: Cluster, admin: Run) -> None:
    """`--expect-nodes` detects a missing nsqd that nsqlookupd no longer lists."""
    cluster.recreate("orders", dead=False)

    assert 0 == admin("list", "orders", "--expect-nodes=3").status
    ran = admin("list", "orders", "--expect-nodes=4")
    assert 1 == ran.status
    assert "found 3 of 4 expected nsqds" in ran.err


def test_nsqd_addresses_come_from_flag_or_environment(
    cluster: Cluster, admin: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--nsqd-http-address` is used, or the environment without a flag."""
    cluster.recreate("clicks", "archive", messages=1)
    flags = [f"--nsqd-http-address={address}" for address in (*cluster.alive, cluster.dead)]

    ran = admin("list", "clicks", *flags)
    assert (1, ["archive", "no", "consumers", "2"]) == (ran.status, ran.rows[1][:4])
    assert f"{cluster.dead}: connection refused" in ran.err
    monkeypatch.setenv("SPARQ_NSQD_HTTP_ADDRESS", ",".join(cluster.alive))
    assert 0 == main(["admin", "list", "clicks"])
    monkeypatch.setenv("SPARQ_LOOKUPD_HTTP_ADDRESS", cluster.lookupd.http)
    assert 1 == main(["admin", "list", "clicks"])
    monkeypatch.delenv("SPARQ_NSQD_HTTP_ADDRESS")
    monkeypatch.delenv("SPARQ_LOOKUPD_HTTP_ADDRESS")
    assert 1 == main(["admin", "list", "clicks"])
