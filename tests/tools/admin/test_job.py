"""The context of a verb of `sparq admin`: confirmation at a terminal, and the next steps."""

from __future__ import annotations

import os

from tests.tools.admin.conftest import Cluster, Run


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

    again = "find clicks archive --limit=7 --token=@FILE '--where=n >= $(id)'"
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
