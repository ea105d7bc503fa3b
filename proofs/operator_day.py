"""An operator's day on a cluster of three nsqds with TLS and tokens: `make operator_day`.

The daemons and programs are the real ones. A producer publishes all the time, and each channel has
a consumer; both find the nsqds through nsqlookupds. The operator works with `sparq admin`:

- poison: a handler fails until its messages are dead letters; it is mended, and they are redriven;
- replay: a channel is moved back, and gets all its messages again;
- move: a topic moves to another nsqd, with a backlog;
- delete and tombstone: topics under attached consumers must stay away until the end;
- drain: an nsqd is drained, ends, is started again and returns;
- leaver: a colleague publishes, consumes and administers when his tokens are removed.

At the end everything stands still: messages wait in a paused channel, in a paused topic and in one
without a channel, are deferred, in flight, or dead letters. Then each figure of nsqadmin, of `sparq
top` and of `sparq admin list` must be what the script itself has counted (`book`).

The control (operator_day_parts/careless.py) is an nsqd that keeps removed tokens and a deleted
topic, repeats attempts and miscounts: each of the four counts must notice. What each role may do is
tried request by request in tests/scenarios/security/test_roles.py.
"""

import asyncio
import logging
import sys

from tests.support.waiting import until as until_true

from proofs import outcome
from proofs.operator_day_parts.book import DEAD, REDRIVE, Book, Extra, Findings, Kind, Place
from proofs.operator_day_parts.crew import HOUR_SECONDS, IN_FLIGHT, LATE_CHANNEL, Crew
from proofs.operator_day_parts.figures import Sheets
from proofs.operator_day_parts.leaver import LEAVER, Leaver
from proofs.operator_day_parts.leaver import PLACES as LEAVERS_PLACES
from proofs.operator_day_parts.site import SecureNsqd, Site
from proofs.operator_day_parts.watcher import Watcher
from proofs.outcome import Outcome, Plan, progress
from proofs.workload import NSQD, RunningActors, data_folder, is_drained, until, wait_until

PROMISES = ("P20",)
CARELESS = "proofs.operator_day_parts.careless"
CHANNELS = ("archive", "billing", LATE_CHANNEL)
PAYMENTS, REPLAY, MOVED, DELETED, HIDDEN, IDLE = TOPICS = (
    *("payments", "replay", "moved", "deleted", "hidden"),
    "idle",
)
POISONED = (PAYMENTS, "billing")
LETTERS = PAYMENTS + DEAD
ATTEMPTS_MAX = 3
BURIED_SECONDS = 60.0
FULL_CHANNELS = 30
"""From this many channels on, everything is asked of every program."""

CONTROL_CHANNELS = 15
SHORT_SECONDS = 0.2
"""How long the traffic goes on after each step; in a full run, the longer the more channels."""

BACKLOG, REPLAYED, POISON = 60, 60, 12
PAUSED, WITHHELD, DEFERRED, PUT_OFF, HELD, LEFT = 9, 7, 8, 4, 45, 5


class Day:
    """The operator's steps, one after another, while the crew works.

    Args:
        site: the daemons.
        seed: seed of the crew's choices.
        channels: about how many channels there are; three for each topic.
    """

    def __init__(self, site: Site, seed: int, channels: int) -> None:
        self.site = site
        self.is_full = channels >= FULL_CHANNELS
        self.step_seconds = channels / 10 if self.is_full else SHORT_SECONDS
        self.plain = [f"plain.{n}" for n in range(max(0, channels // len(CHANNELS) - 5))]
        self.nodes = [each.tcp for each in site.nsqds]
        self.book = Book(self.nodes)
        self.crew = Crew(site, self.book, seed)
        self.watcher = Watcher(site)
        self.found = Findings()
        self.leaver = Leaver(site, self.crew, self.found)
        site.read_tokens_again()

    async def live(self) -> Findings:
        """Do all steps; return what they found."""
        await self._open()
        async with self.crew, RunningActors(self.watcher):
            await self._consume()
            for steps in (
                (self._poison, self._replay),
                (self._move, self._delete, self._hide),
                (self._drain,),
                (self.leaver.work_and_leave,),
            ):
                progress(" and ".join(step.__name__.strip("_") for step in steps))
                await asyncio.gather(*(step() for step in steps))
                await asyncio.sleep(self.step_seconds)
            await self._stand_still()
            progress("comparing")
            sheets = Sheets(self.site, self.book)
            self.found.figures = await sheets.all(1_000 if self.is_full else 1)
        self._sum_up()
        return self.found

    def _sum_up(self) -> None:
        found, book = self.found, self.book
        found.acknowledged = sum(map(len, book.posts.values()))
        found.handled = sum(map(len, book.deliveries.values()))
        found.twice += book.twice
        found.came_back += sorted(self.watcher.came_back)
        for name, count in (("finished twice", book.finished_twice()), ("ghosts", book.ghosts())):
            found.twice += [f"{count} {name}"] * bool(count)
        self.found.reports.note("publishes refused:", len(self.crew.refused), 0)
        self.found.reports.note("publishes sent twice:", book.doubtful, 0)

    # The steps

    async def _open(self) -> None:
        """Create all topics and channels, and set a limit on attempts."""
        book = self.book
        places = [(t, c) for t in (*TOPICS[:-1], *self.plain) for c in CHANNELS]
        places += LEAVERS_PLACES
        for topic, channel in places:
            book.channels.setdefault(topic, []).append(channel)
        book.limits[POISONED] = ATTEMPTS_MAX
        rules = self.site.folder / "policies.toml"
        rules.write_text(
            f'[[policies]]\ntopic = "{PAYMENTS}"\nchannel = "{POISONED[1]}"\n'
            f"max_attempts = {ATTEMPTS_MAX}\n"
        )
        await asyncio.gather(
            self.site.done("policies", "apply", str(rules), "--yes"),
            self.site.done("create", *places[0]),
            *(asyncio.to_thread(self.site.create, *place) for place in places[1:]),
        )
        self.places = [place for place in places if place not in LEAVERS_PLACES]

    async def _consume(self) -> None:
        """Start the consumers and the traffic."""
        for place in self.places:
            await self.crew.join(place)
        self.crew.broken.add(POISONED)
        self.crew.traffic = [PAYMENTS, MOVED, DELETED, HIDDEN, *self.plain]
        # nsqds have a topic from its first message on; then they get its channels from nsqlookupd.
        await until(self._is_everywhere, "all topics are at all nsqds")
        await asyncio.sleep(self.step_seconds)

    def _is_everywhere(self) -> bool:
        places = [self.book.places.get(topic, set()) for topic in self.crew.traffic]
        return all(len(nodes) == len(self.nodes) for nodes in places) and self.crew.are_connected()

    async def _poison(self) -> None:
        """Let messages become dead letters, mend the handler, and redrive them."""
        await self.crew.burst(PAYMENTS, POISON, Kind.POISON)
        await asyncio.sleep(self.step_seconds)
        self.crew.broken.clear()
        await self._bury()
        book = self.book
        ran = await self.site.done("redrive", LETTERS, "--json")
        dead = {node: len(book.letters(node, POISONED)) for node in self.nodes}
        self.found.reports.note("redrive: redriven:", ran.json["redriven"], sum(dead.values()))
        for node, count in dead.items():
            book.removed[node, LETTERS, REDRIVE] += count
            book.extras.append(Extra(node, 1, *POISONED, count))
        await until(lambda: not self._dead_numbers() & book.unfinished(POISONED), "redriven")

    def _dead_numbers(self) -> set[int]:
        letters = [self.book.letters(node, POISONED) for node in self.nodes]
        return {each.number for of_node in letters for each in of_node}

    async def _bury(self) -> None:
        """Wait until every dead letter is stored, and note where."""
        book = self.book
        book.channels[LETTERS] = [REDRIVE]

        def waiting(nsqd: SecureNsqd) -> int:
            return int(nsqd.channel(LETTERS, REDRIVE).get("depth", 0))

        async def are_stored() -> bool:
            for nsqd in self.site.nsqds:
                own = (
                    len(book.letters(nsqd.tcp, POISONED)) - book.removed[nsqd.tcp, LETTERS, REDRIVE]
                )
                if await asyncio.to_thread(waiting, nsqd) != own:
                    return False
            # A message with fewer attempts may still become one.
            return not book.unfinished(POISONED) - self._dead_numbers() or not self.crew.broken

        await until_true(are_stored, BURIED_SECONDS)
        for node in self.nodes:
            count = len(book.letters(node, POISONED))
            known = sum(e.messages for e in book.extras if (e.node, e.topic) == (node, LETTERS))
            if count > known:
                life = book.lives[node]
                book.extras.append(Extra(node, life, LETTERS, "", count - known))
                book.places.setdefault(LETTERS, set()).add(node)

    async def _replay(self) -> None:
        """Move a channel to its beginning, once it has finished everything."""
        book, place = self.book, (REPLAY, "archive")
        await self.crew.burst(REPLAY, REPLAYED)
        await self._finished(REPLAY)
        await asyncio.to_thread(wait_until, self._replay_is_drained, "the FINs are there")
        count = book.finished_count(place)
        book.replayed(place)
        ran = await self.site.done("seek", *place, "earliest", "--json")
        self.found.reports.note(
            "seek: again:", sum(row["again"] for row in ran.json["rows"]), count
        )
        await self._finished(REPLAY)

    def _replay_is_drained(self) -> bool:
        return all(is_drained(nsqd, REPLAY, CHANNELS) for nsqd in self.site.nsqds)

    async def _move(self) -> None:
        """Move a topic whose channel has a backlog to another nsqd."""
        site, book, place = self.site, self.book, (MOVED, "archive")
        source, target = site.nsqds[0], site.nsqds[1]
        await self.crew.leave(place)
        await self.crew.burst(MOVED, BACKLOG)
        options = [f"tls_root_ca_file,{site.authority}"]
        options += [f"auth_secret,{source.token}"]
        words = [f"--from={source.http}", f"--to={target.http}", "--wait=2s", "--json"]
        words += [f"--consumer-opt={each}" for each in options]
        ran = await site.done("move", "topic", MOVED, *words)
        self.watcher.gone.add((source.tcp, MOVED))
        await self.crew.stop_traffic([MOVED])
        book.places[MOVED].discard(source.tcp)
        await self.crew.join(place)
        await self._finished(MOVED)
        self.found.reports.note(
            "move: carried:", ran.json["carried"], book.carried(MOVED, source.tcp, target.tcp)
        )

    async def _delete(self) -> None:
        """Delete a topic under its consumers."""
        await self.crew.stop_traffic([DELETED])
        ran = await self.site.admin("delete", DELETED, "--yes")
        self.found.reports.note("delete: status:", ran.status, 0)
        self.book.places.pop(DELETED)
        self.watcher.gone |= {(node, DELETED) for node in self.nodes}
        self.watcher.unlisted.add(DELETED)

    async def _hide(self) -> None:
        """Tombstone a topic at one nsqd, which deletes it there."""
        node = self.site.nsqds[1]
        await self.crew.stop_traffic([HIDDEN])
        await self._finished(HIDDEN)
        ran = await self.site.admin("tombstone", HIDDEN, node.http, "--yes")
        self.found.reports.note("tombstone: status:", ran.status, 0)
        self.book.places[HIDDEN].discard(node.tcp)
        self.watcher.gone.add((node.tcp, HIDDEN))

    async def _drain(self) -> None:
        """Drain an nsqd until its process ends, start it again, and end the drain."""
        node = self.site.nsqds[2]
        ran = await self.site.done("drain", node.http, "--exit", "--timeout=60s", "--json")
        self.found.reports.note("drain: result:", ran.json["result"], "ended")
        self.found.reports.note("drain: status:", await asyncio.to_thread(node.kill9), None)
        self.book.lives[node.tcp] += 1
        await asyncio.to_thread(node.start)
        await self.site.done("drain", node.http, "--undo")
        await until(self.crew.are_connected, "all consumers are back")

    async def _finished(self, *topics: str, but: Place | None = None) -> None:
        """Wait until the consumers of these topics have finished everything, but for one."""
        book = self.book
        places = [(t, c) for t in topics for c in book.channels[t] if (t, c) != but]
        await until(lambda: not any(map(book.unfinished, places)), f"{topics} finished")

    # The end

    async def _stand_still(self) -> None:
        """Stop the traffic, and leave messages in every state."""
        book, crew, site = self.book, self.crew, self.site
        await crew.stop_traffic()
        await self._finished(PAYMENTS, REPLAY, MOVED, HIDDEN, *self.plain)
        crew.broken.add(POISONED)
        await crew.burst(PAYMENTS, LEFT, Kind.POISON)
        await self._finished(PAYMENTS, but=POISONED)
        await self._bury()
        await asyncio.gather(
            site.done("pause", REPLAY, "archive"),
            site.done("pause", LEAVER),
            site.done("create", IDLE),
        )
        book.paused |= {(REPLAY, "archive"), (LEAVER, "")}
        book.channels[IDLE] = []
        before = {*book.posts[LEAVER]}
        await crew.burst(REPLAY, PAUSED)
        await crew.burst(LEAVER, WITHHELD)
        book.withheld[LEAVER] = {*book.posts[LEAVER]} - before
        await crew.burst(MOVED, DEFERRED, Kind.PLAIN, HOUR_SECONDS)
        await crew.burst(MOVED, PUT_OFF, Kind.LATER)
        await crew.burst(IDLE, LEFT)
        await crew.burst(PAYMENTS, HELD, Kind.HELD)
        await until(self._is_still, "everything stands still")
        book.connections = crew.connections()

    def _is_still(self) -> bool:
        """Return whether the consumers have got what they can get."""
        book = self.book
        ready = IN_FLIGHT // len(self.nodes)
        for node in self.nodes:
            held = [p for p in book.posts[PAYMENTS].values() if p.kind is Kind.HELD]
            here = sum(post.node == node for post in held)
            payments = book.figures(node)[PAYMENTS].channels
            for name in ("archive", "billing"):
                if payments[name].in_flight != min(ready, here):
                    return False
        put_off = {n for n, post in book.posts[MOVED].items() if post.kind is Kind.LATER}
        moved = [{each.number for each in book.deliveries[MOVED, c]} for c in CHANNELS]
        others = [(REPLAY, c) for c in CHANNELS[1:]] + [(PAYMENTS, LATE_CHANNEL)]
        return all(put_off <= each for each in moved) and not any(map(book.unfinished, others))


async def day_on(site: Site, seed: int, channels: int) -> Findings:
    """Live one day; its clients are made in the event loop."""
    return await Day(site, seed, channels).live()


def attempt(plan: Plan, channels: int, module: str = NSQD) -> Findings:
    """Live one day in its own folder."""
    keep = plan.keep if module == NSQD else None
    with data_folder(keep) as folder, Site(folder, module) as site:
        return asyncio.run(day_on(site, plan.seed, channels))


def prove(plan: Plan) -> Outcome:
    """Run the proof and its control."""
    found = attempt(plan, plan.count)
    violations = found.violations()
    for each in violations[:150]:
        print(f"  {each}")
    held = not violations and found.acknowledged > 0 and found.figures.compared > 0
    control = ""
    if plan.control:
        careless = attempt(plan, CONTROL_CHANNELS, CARELESS)
        control = f"with a careless nsqd: {careless.line()}"
        noticed = careless.twice, careless.unauthorised, careless.came_back, careless.figures.wrong
        held = held and all(noticed)
    return Outcome(PROMISES, found.line(), held, control)


if __name__ == "__main__":
    # The clients log each connection that the operator's steps end.
    for name in ("asyncio", "sparq.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    sys.exit(outcome.run("operator_day", prove, count=FULL_CHANNELS, of="channels"))
