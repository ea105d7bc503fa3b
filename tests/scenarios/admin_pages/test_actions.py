"""Every action of the pages, done in Chromium, has its effect on the nsqds."""

from __future__ import annotations

import re
from typing import Any

from sparq.nsqadmin.words import UNKNOWN
from tests.scenarios.admin_pages.browser import Reader
from tests.scenarios.admin_pages.cluster import Cluster, order
from tests.support.waiting import wait_for

POLICY = '[[policies]]\ntopic = "act.poli*"\nmax_channels = 2'


def topic_of(cluster: Cluster, node: int, topic: str) -> dict[str, Any]:
    """A node's statistics of a topic; {} if it does not have the topic."""
    found = cluster.nsqds[node].get_json(f"/stats?format=json&topic={topic}")["topics"] or []
    return dict(found[0]) if found else {}


def press_and_confirm(reader: Reader, button: str, verb: str, typed: str = "") -> None:
    """Press a button and confirm its dialog."""
    reader.page.get_by_role("button", name=button, exact=True).click()
    dialog = reader.page.locator("[popover]:popover-open")
    if typed:
        dialog.locator("input[name=typed]").fill(typed)
    dialog.get_by_role("button", name=verb, exact=True).click()


def answer_question(reader: Reader, button: str, question: str, verb: str) -> None:
    """Press a button, and confirm the question that is the answer."""
    reader.page.get_by_role("button", name=button, exact=True).click()
    wait_for_notice(reader, question)
    reader.page.locator("#result").get_by_role("button", name=verb, exact=True).click()


def wait_for_notice(reader: Reader, *texts: str) -> None:
    """Wait until the result notice contains the texts."""
    for text in texts:
        reader.wait_for(text, "#result")


def select_rows(reader: Reader, *rows: int) -> None:
    """Select rows of a message list."""
    boxes = reader.page.locator("tbody input[type=checkbox]")
    for row in rows:
        boxes.nth(row).check()


def test_emptying_and_deleting_require_the_name(reader: Reader, cluster: Cluster) -> None:
    """Empty and Delete require the exact name, and then act on every nsqd."""
    cluster.create("act.delete", "c", "kept")
    for node in (0, 1):
        cluster.publish("act.delete", b"1", b"2", node=node)
    wait_for(lambda: cluster.depth("act.delete", "c") == 4)
    reader.open("/topics/act.delete/c")
    press_and_confirm(reader, "Empty…", "Empty", typed="d")
    assert reader.page.locator("[popover]:popover-open input:invalid").count() == 1
    assert cluster.depth("act.delete", "c") == 4
    reader.press("Escape")

    press_and_confirm(reader, "Empty…", "Empty", typed="c")
    wait_for_notice(reader, "Emptied: act.delete/c")
    assert cluster.depth("act.delete", "c") == 0
    assert cluster.depth("act.delete", "kept") == 4

    press_and_confirm(reader, "Delete…", "Delete", typed="c")
    wait_for_notice(reader, "Deleted: act.delete/c")
    assert [nsqd.channel("act.delete", "c") for nsqd in cluster.nsqds] == [{}, {}]
    reader.wait_for("No nsqd has a channel of this name")

    reader.open("/topics/act.delete")
    press_and_confirm(reader, "Delete…", "Delete", typed="act.delete")
    wait_for_notice(reader, "Deleted: act.delete")
    assert topic_of(cluster, 0, "act.delete") == topic_of(cluster, 1, "act.delete") == {}


def test_messages_are_requeued_finished_cancelled_and_copied(
    reader: Reader, cluster: Cluster
) -> None:
    """Selected messages can be finished, copied and cancelled; the list refreshes by itself."""
    cluster.create("act.messages", "c")
    cluster.create("act.copies", "c")
    cluster.publish("act.messages", *(order(n) for n in range(6)))
    nsqd = cluster.nsqds[0]
    nsqd.post("/pub?topic=act.messages&defer=600000", b"later")
    wait_for(lambda: nsqd.channel("act.messages", "c")["deferred_count"] == 1)
    reader.open("/messages?topic=act.messages&channel=c&show=waiting")
    select_rows(reader, 0, 1)
    answer_question(reader, "Finish…", "Finish 2 messages in act.messages/c?", "Finish")
    wait_for_notice(reader, "Finished: 2 messages of act.messages/c")
    assert cluster.depth("act.messages", "c") == 4
    reader.until("document.querySelectorAll('tbody input[type=checkbox]').length === 4")

    select_rows(reader, 0)
    reader.page.get_by_role("button", name="Copy to a topic…").click()
    reader.page.locator("[popover]:popover-open input[name=to]").fill("act.copies")
    reader.page.locator("[popover]:popover-open").get_by_role("button", name="Copy…").click()
    wait_for_notice(reader, "Its only channel gets them: c.")
    reader.page.locator("#result").get_by_role("button", name="Do nothing").click()
    assert reader.page.locator("#result").inner_text() == ""
    reader.page.get_by_role("button", name="Copy to a topic…").click()
    reader.page.locator("[popover]:popover-open").get_by_role("button", name="Copy…").click()
    reader.page.locator("#result").get_by_role("button", name="Copy").click()
    wait_for_notice(reader, "Copied: 1 message of act.messages/c to act.copies")
    assert cluster.depth("act.copies", "c") == 1

    reader.open("/messages?topic=act.messages&channel=c&show=deferred")
    select_rows(reader, 0)
    answer_question(reader, "Cancel…", "Drop 1 deferred message", "Cancel them")
    wait_for_notice(reader, "Cancelled: 1 message of act.messages/c")
    assert nsqd.channel("act.messages", "c")["deferred_count"] == 0


def test_a_channel_is_moved_back_with_the_chart(reader: Reader, cluster: Cluster) -> None:
    """Dragging on the chart only previews a time; the button moves the channel."""
    cluster.create("act.replay", "c", "keeps.the.log")
    cluster.publish("act.replay", *(order(n) for n in range(40)))
    wait_for(lambda: cluster.depth("act.replay", "c") == 40)
    cluster.nsqds[0].post("/channel/empty?topic=act.replay&channel=c")
    reader.open("/replay?topic=act.replay&channel=c")
    box = reader.page.locator("#times .u-over").bounding_box()
    reader.page.mouse.move(box["x"] + box["width"] - 5, box["y"] + 20)
    reader.page.mouse.down()
    reader.page.mouse.move(box["x"] + 1, box["y"] + 20)
    reader.page.mouse.up()
    reader.wait_for("would be delivered again", "#live")
    assert re.fullmatch(r"20\d\d-.+Z", reader.page.locator("input[name=to]").first.input_value())
    assert cluster.depth("act.replay", "c") == 0

    reader.page.locator("form#seek input[name=to]").fill("earliest")
    reader.page.locator("form#seek input[name=to]").press("Enter")
    reader.wait_for("40 messages would then be waiting", "#live")
    answer_question(reader, "Move c to earliest…", "40 messages would be delivered again", "Move")
    wait_for_notice(reader, "Moved: act.replay/c to earliest")
    assert cluster.depth("act.replay", "c") == 40


def test_policies_are_previewed_set_and_dropped(reader: Reader, cluster: Cluster) -> None:
    """The page previews the changes of a policy; Set and Drop apply to all nsqds."""
    cluster.create("act.policy", "c")
    reader.open("/policies")
    reader.page.get_by_label("Policies", exact=True).fill(POLICY)
    reader.page.get_by_role("button", name="What would change").click()
    reader.wait_for("2 settings of topics and channels would change at 2 nsqds", "#tried")
    rows = reader.page.locator("#tried tbody tr").all_inner_texts()
    assert (
        sorted(row.split()[1:] for row in rows)
        == [["act.policy", UNKNOWN, "max_channels", "0", "2"]] * 2
    )
    assert [nsqd.get_json("/policies")["policies"] for nsqd in cluster.nsqds] == [[], []]

    reader.page.locator("#tried input[name=typed]").fill("policies")
    reader.page.get_by_role("button", name="Set at all nsqds").click()
    wait_for_notice(
        reader, "Set: 1 policy; 2 settings of topics and channels changed on", cluster.nsqds[1].http
    )
    reader.wait_for("act.poli*", "#live")
    reader.until("document.querySelector('#tried').innerHTML === ''")
    reader.open("/topics/act.policy")
    assert "max_channels\t2\trun time, policy 1" in reader.text("#settings")

    reader.open("/policies")
    assert reader.page.get_by_label("Policies", exact=True).input_value() == POLICY
    press_and_confirm(reader, "Drop…", "Drop", typed="policies")
    wait_for_notice(reader, "Dropped: all run-time policies; 2 settings")
    assert [nsqd.get_json("/policies")["policies"] for nsqd in cluster.nsqds] == [[], []]
