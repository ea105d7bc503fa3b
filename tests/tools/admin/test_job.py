"""Running a verb of `sparq admin`: confirmation, next steps, signals."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

import pytest

from sparq.cli import main
from sparq.tools.admin.job import NO_ROUTE, in_words
from tests.tools.admin.conftest import Cluster, OldNsqd, Run, serving


def test_a_terminal_user_must_type_the_name(cluster: Cluster, admin: Run) -> None:
    """A terminal user must type the name; after a wrong one nothing is done."""
    cluster.recreate("orders", "c", messages=1, dead=False)
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


def test_the_next_command_has_all_flags(cluster: Cluster, admin: Run) -> None:
    """The printed command repeats the call for the dead nsqd, quoted, and without the token."""
    cluster.recreate("clicks", "archive")

    ran = admin("find", "clicks", "archive", "--where=n >= $(id)", "--limit=7", "--token=secret")

    again = "find clicks archive '--where=n >= $(id)' --limit=7 --token=@FILE"
    assert f"sparq admin {again} --nsqd-http-address={cluster.dead}\n" in ran.err
    assert "secret" not in ran.err


def test_an_nsqd_without_the_feature_is_named_with_advice(
    cluster: Cluster, admin: Run, old_nsqd: str
) -> None:
    """Go's or an older nsqd is named with advice, but without a command that would fail again."""
    flags = [f"--nsqd-http-address={address}" for address in (cluster.nsqds[0].http, old_nsqd)]
    cluster.recreate("clicks", "archive", messages=1)

    for words in (["peek"], ["find"], ["export"], ["seek"]):
        place = ["earliest", "--dry-run"] if words == ["seek"] else []
        ran = admin(*words, "clicks", "archive", *place, *flags)
        told = ran.out + ran.err
        assert 1 == ran.status
        assert f"{old_nsqd}: it does not support this: Go's nsqd, or an older version" in told
        assert f"nsqd {old_nsqd}: use sparq's nsqd there, or do without its data\n" in told
        assert f"http-address={old_nsqd}" not in told
    ran = admin("seek", "clicks", "archive", "earliest", *flags)
    assert (1, "moved in part:") == (ran.status, ran.out[:14])
    assert f"{old_nsqd}: it does not support this" in ran.out
    ran = admin("requeue", "clicks", "archive", "0" * 16, *flags)
    assert f"{old_nsqd}: it does not support this" in ran.out
    ran = admin("pause", "clicks", "archive", *flags)
    assert (0, 2) == (ran.status, ran.out.count("done"))


class ForbiddingNsqd(OldNsqd):
    """An nsqd that refuses each change, as with a token of another role."""

    def answer(self, document: Any, status: int = 200) -> None:
        if self.command == "GET":
            super().answer(document, status)
        else:
            super().answer({"message": "FORBIDDEN"}, 403)


def test_one_mistake_of_three_nsqds_is_one_line(admin: Run) -> None:
    """It names the nsqds, and the code and the status as words; the next command names all."""
    with ExitStack() as stack:
        nsqds = [stack.enter_context(serving(ForbiddingNsqd)) for _ in range(3)]
        flags = [f"--nsqd-http-address={address}" for address in nsqds]
        paused = admin("pause", "clicks", "archive", *flags)
        sought = admin("seek", "clicks", "archive", "earliest", *flags)
        document = admin("pause", "clicks", "archive", "--json", *flags).document

    three = ", ".join(nsqds)
    assert f"{three}: FORBIDDEN (403)\n" in paused.out
    assert f"{three}: FORBIDDEN (403)\n" in sought.out
    advice = f"  nsqd {three}: the token needs another role (docs/access.md)"
    for ran, verb in ((paused, "pause clicks archive"), (sought, "seek clicks archive earliest")):
        assert (1, 1, 1) == (ran.status, ran.out.count("FORBIDDEN"), ran.out.count(advice))
        assert f"    sparq admin {verb} {' '.join(flags)}\n" in ran.out
        assert "\\" not in ran.out + ran.err
    assert dict.fromkeys(nsqds, "FORBIDDEN (403)") == document["errors"]
    assert {"FORBIDDEN (403)"} == {step["error"] for step in document["steps"]}


def test_a_reason_is_one_readable_line() -> None:
    """A daemon's JSON becomes its message and status, wherever it is in a text."""
    got = 'got response 404 Not Found "{\\"message\\":\\"TOPIC_NOT_FOUND\\"}"'
    assert "TOPIC_NOT_FOUND (404)" == in_words(got)
    text = f"failed to query any nsqlookupd: {got} (a:1)\n{got} (b:1)"
    said = "TOPIC_NOT_FOUND (404)"
    assert f"failed to query any nsqlookupd: {said} (a:1); {said} (b:1)" == in_words(text)
    assert NO_ROUTE == in_words(
        in_words('got response 404 Not Found "{\\"message\\":\\"NOT_FOUND\\"}"')
    )
    assert "Bad Gateway (502)" == in_words('got response 502 Bad Gateway ""')
    assert "<html> (500)" == in_words('got response 500 Oops "<html>"')
    assert "connection refused" == in_words("connection refused")


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
        (["list", "--nsqd-http-address="], "--nsqd-http-address or --lookupd-http-address"),
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
