"""Watches for topics that come back after the operator has removed them."""

from __future__ import annotations

import asyncio

from proofs.operator_day_parts.site import Site

EVERY_SECONDS = 0.2


class Watcher:
    """Asks all daemons for their topics.

    Attributes:
        gone: topics that a node no longer has, as (its TCP address, topic).
        unlisted: topics that no nsqlookupd lists any more.
        came_back: those that were seen again.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.gone: set[tuple[str, str]] = set()
        self.unlisted: set[str] = set()
        self.came_back: set[str] = set()

    async def live(self) -> None:
        """Look again and again."""
        while True:
            await asyncio.to_thread(self._look)
            await asyncio.sleep(EVERY_SECONDS)

    def _look(self) -> None:
        if not self.gone:
            return
        for nsqd in self.site.nsqds:
            # Before the answer: what is removed meanwhile may still be in it.
            gone = {topic for node, topic in self.gone if node == nsqd.tcp}
            try:
                stats = nsqd.get_json("/stats?format=json&include_clients=false&include_mem=false")
            except OSError:
                continue  # it is being restarted
            present = {topic["topic_name"] for topic in stats["topics"] or ()}
            self.came_back |= {f"{topic} at {nsqd.tcp}" for topic in gone & present}
        unlisted = {*self.unlisted}
        for lookupd in self.site.lookupds:
            listed = {*self.site.look_up(lookupd, "/topics")["topics"]}
            self.came_back |= {f"{topic} at {lookupd.http}" for topic in unlisted & listed}
