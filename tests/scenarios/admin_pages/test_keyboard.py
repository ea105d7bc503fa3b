"""Every function of the pages can be used with the keyboard alone."""

from __future__ import annotations

from tests.scenarios.admin_pages.browser import Reader
from tests.scenarios.admin_pages.cluster import Cluster


def tab_to(reader: Reader, text: str, presses: int = 60) -> None:
    """Press Tab until an element with this text or name has the focus."""
    for _ in range(presses):
        reader.press("Tab")
        if reader.focused() == text:
            return
    raise AssertionError(f"{text!r} is not reached with Tab")


def test_keys_open_pages_and_are_listed(reader: Reader) -> None:
    """`g` and a letter opens a page; `?` lists the keys, Escape closes the list."""
    reader.open("/")
    reader.press("?")
    assert reader.page.locator("#keys:popover-open").count() == 1
    reader.press("Escape")
    assert reader.page.locator("#keys:popover-open").count() == 0
    for key, path in (("t", "/topics"), ("n", "/nodes"), ("l", "/lookup"), ("o", "/")):
        reader.press("g", key)
        reader.page.wait_for_url(reader.url + path)


def test_keys_filter_select_and_open_rows(reader: Reader) -> None:
    """`/` filters, `j` and `k` move from row to row, Enter opens a row."""
    reader.open("/topics")
    reader.press("/")
    reader.page.keyboard.type("orders")
    reader.until("document.querySelectorAll('tbody tr').length === 2")
    reader.press("Escape", "j")
    assert reader.focused() == "orders"
    reader.press("j")
    assert reader.focused() == "orders.dead"
    reader.press("k", "Enter")
    reader.page.wait_for_url(reader.url + "/topics/orders")


def test_deleting_by_keyboard_is_announced(reader: Reader, cluster: Cluster) -> None:
    """Delete works with Tab, Enter and the typed name; a screen reader reads the result aloud."""
    cluster.create("keys.delete", "c")
    reader.open("/topics/keys.delete/c")
    tab_to(reader, "Delete…")
    reader.press("Enter")
    assert reader.focused() == "typed"
    reader.page.keyboard.type("c")
    reader.press("Enter")
    reader.wait_for("Deleted: keys.delete/c", "#result")

    assert cluster.nsqds[0].channel("keys.delete", "c") == {}
    assert reader.page.locator("#result").get_attribute("aria-live") == "polite"
    assert reader.page.locator("[popover]:popover-open").count() == 0


def test_the_first_tab_stop_skips_the_menu(reader: Reader) -> None:
    """The first Tab stop is a link that skips the menu."""
    reader.open("/topics")
    reader.press("Tab")
    assert reader.focused() == "Skip to the page"
    reader.press("Enter")
    assert reader.focused().startswith("Topics")
