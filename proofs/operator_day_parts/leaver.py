"""A colleague whose tokens are removed while he is connected: nothing that he does may have effect.

He publishes, consumes a channel of his own and administers, with one token of the daemons and one
of nsqadmin. Both are removed from their files, and the daemons read them again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.support.waiting import until_seen

from proofs.operator_day_parts.book import Findings, Kind
from proofs.operator_day_parts.crew import Crew
from proofs.operator_day_parts.site import Site, ask
from proofs.workload import is_drained, until, wait_until
from sparq.client import Producer
from sparq.client.errors import ClosedError, PublishError
from sparq.protocol.errors import RemoteError

LEAVER, KEPT = "leaver", "kept"
PLACES = ((LEAVER, LEAVER), (LEAVER, KEPT))
MESSAGES, LATER = 20, 30
PUBLISH_SECONDS, SOON_SECONDS = 1.0, 10.0
GRACE_SECONDS = 1.0
REQUESTS = (
    ("POST", "/topic/pause?topic=leaver"),
    ("POST", "/channel/empty?topic=leaver&channel=leaver"),
    ("POST", "/channel/delete?topic=leaver&channel=leaver"),
    ("POST", "/pub?topic=leaver"),
    ("POST", "/topic/delete?topic=leaver"),
)


class Leaver:
    """The colleague; what he does is counted in `found`."""

    def __init__(self, site: Site, crew: Crew, found: Findings) -> None:
        self.site, self.crew, self.found = site, crew, found
        site.tokens.give(LEAVER, "publish,consume,administer")
        site.admin_tokens.give(LEAVER, "administer")

    async def work_and_leave(self) -> None:
        """Work, lose the tokens, and try to go on."""
        crew, book, note = self.crew, self.crew.book, self.found.note_attempt
        await crew.join((LEAVER, KEPT))
        consumer = await crew.join((LEAVER, LEAVER), LEAVER)
        producer = Producer(
            lookupd_http_addresses=self.site.lookupd_addresses,
            config=self.site.config(LEAVER, publish_timeout=PUBLISH_SECONDS, stop_timeout=1.0),
        )
        async with producer:
            await until(crew.are_connected, "the leaver is connected")
            for _ in range(MESSAGES):
                assert await self._publishes(producer)
            await until(lambda: not any(map(book.unfinished, PLACES)), "the leaver's messages")
            # A FIN that nsqd has not read yet would be lost with the connection.
            await asyncio.to_thread(wait_until, self._is_finished, "the leaver's FINs are there")
            await self._lose_the_tokens()
            with suppress(AssertionError):
                await until(lambda: not consumer.connections, "the leaver is cut off", SOON_SECONDS)
            note("consumer still connected", effect=bool(consumer.connections))
            tries = [self._publishes(producer) for _ in range(LATER)]
            for accepted in await asyncio.gather(*tries):
                note("PUB", effect=accepted)
            handled = len(book.deliveries[LEAVER, LEAVER])
            await crew.burst(LEAVER, LATER)
            await until(lambda: not book.unfinished((LEAVER, KEPT)), "the others' messages")
            await asyncio.sleep(GRACE_SECONDS)
            for _ in range(len(book.deliveries[LEAVER, LEAVER]) - handled):
                note("message handled", effect=True)
            note("message handled", effect=False)
            await self._administer()

    def _is_finished(self) -> bool:
        return all(is_drained(nsqd, LEAVER, [LEAVER]) for nsqd in self.site.nsqds)

    async def _publishes(self, producer: Producer) -> bool:
        """Publish one message; return whether an nsqd accepted it."""
        book = self.crew.book
        number, body = book.body(Kind.PLAIN)
        try:
            receipt = await producer.publish(LEAVER, body)
        except (PublishError, RemoteError, ClosedError):
            return False
        book.published(LEAVER, number, Kind.PLAIN, receipt.nsqd, deferred=False)
        return True

    async def _lose_the_tokens(self) -> None:
        """Remove both tokens, and wait until every daemon has read its file again."""
        site = self.site
        for file in (site.tokens, site.admin_tokens):
            del file.lines[LEAVER]
        site.read_tokens_again()

        def all_refuse() -> bool:
            token = site.tokens.shown[LEAVER]
            ports = [each.http_port for each in site.lookupds]
            statuses = [each.request_as(token, "GET", "/info")[0] for each in site.nsqds]
            statuses += [ask(port, token, "GET", "/info")[0] for port in ports]
            own = site.admin_tokens.shown[LEAVER]
            statuses.append(ask(site.nsqadmin.http_port, own, "GET", "/api/topics")[0])
            return {401} == {*statuses}

        with suppress(TimeoutError):
            await until_seen(all_refuse, SOON_SECONDS)
        accepted = not await asyncio.to_thread(all_refuse)
        self.found.note_attempt("request after the removal", effect=accepted)

    async def _administer(self) -> None:
        """Try to administer: over HTTPS, through nsqadmin, and with `sparq admin`."""
        before = await asyncio.to_thread(self._state)
        await asyncio.gather(
            asyncio.to_thread(self._request),
            self.site.admin("delete", LEAVER, "--yes", token=LEAVER),
        )
        self.found.note_attempt(
            "administering", effect=await asyncio.to_thread(self._state) != before
        )

    def _request(self) -> None:
        site = self.site
        for nsqd in site.nsqds:
            for method, path in REQUESTS:
                nsqd.request_as(site.tokens.shown[LEAVER], method, path, b"x")
                self.found.tried += 1
        own, port = site.admin_tokens.shown[LEAVER], site.nsqadmin.http_port
        ask(port, own, "DELETE", f"/api/topics/{LEAVER}", b"{}")
        ask(port, own, "POST", f"/api/topics/{LEAVER}", b'{"action":"pause"}')
        self.found.tried += 2

    def _state(self) -> list[object]:
        """Return what he could have changed."""
        found: list[object] = []
        for nsqd in self.site.nsqds:
            stats = nsqd.get_json(f"/stats?format=json&topic={LEAVER}&include_clients=false")
            found += [
                (t["paused"], t["message_count"], c["channel_name"], c["depth"], c["paused"])
                for t in stats["topics"] or ()
                for c in t["channels"] or ()
            ]
        return found
