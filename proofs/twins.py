"""Vectorised functions of sparq, each with a plain version of the same thing, and random input.

A pair is a function of a generator: it creates one input, calls both versions and returns both
results. The plain versions work item by item, as documented; where sparq has its own scalar path,
that is the plain version. Sizes lie on both sides of the threshold (16) between sparq's two paths.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sparq.broker import delivery, slots
from sparq.broker.in_flight import NOT_IN_FLIGHT, NOT_OWNED, InFlight
from sparq.broker.slots import PAGE_SIZE
from sparq.log import block, records
from sparq.log.block import Block
from sparq.options.limits import IdentifyLimits
from sparq.protocol import batch, frames, mpub, parser, runs
from sparq.protocol import commands as c
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import BodySlices
from sparq.protocol.instant import INDEX_EPOCH_NS

LIMITS = IdentifyLimits(max_msg_size=60, max_body_size=5_000)
BASE = 5 * PAGE_SIZE - 40
"""The indexes of these cases cross a page boundary."""
HEX = b"0123456789abcdef"
SIZE_MAX = 50
LINE = b"PUB t\n"
Answers = tuple[Any, Any]


class Pair(NamedTuple):
    """A vectorised function and its twin.

    Attributes:
        name: name of the vectorised function: module and function, or class.
        case: creates one input and returns (vectorised, plain) results.
    """

    name: str
    case: Callable[[random.Random], Answers]


# Making input


def count_of(chance: random.Random, most: int = 60) -> int:
    """Return a random count, often near the threshold between the two paths."""
    return chance.choice([chance.randint(0, 3), chance.randint(13, 19), chance.randint(1, most)])


def sizes_of(chance: random.Random, count: int) -> list[int]:
    """Return random sizes: all equal, nearly equal, or arbitrary."""
    kind, size = chance.random(), chance.randint(1, SIZE_MAX)
    sizes = [size] * count
    if kind > 0.7:
        sizes = [chance.randint(1, SIZE_MAX) for _ in range(count)]
    elif kind > 0.4 and count:
        sizes[chance.randrange(count)] = chance.randint(1, SIZE_MAX)
    return sizes


def bodies_of(chance: random.Random, count: int) -> BodySlices:
    """Return random bodies: adjacent, with gaps, or evenly spaced."""
    sizes = sizes_of(chance, count)
    gap = chance.choice([0, 4, 11])
    starts, at = [], chance.randint(0, 5)
    for size in sizes:
        starts.append(at + gap)
        at += size + gap
    data = chance.randbytes(at)
    if sizes and len(set(sizes)) == 1 and chance.random() < 0.5:
        step = sizes[0] + gap
        return BodySlices.even(data, range(starts[0], starts[0] + step * count, step), sizes[0])
    if chance.random() < 0.5:
        return BodySlices(data, starts, sizes)
    return BodySlices(data, np.array(starts, np.int64), np.array(sizes, np.int64))


def frames_of(chance: random.Random, count: int) -> tuple[bytes, list[int], int]:
    """Return (frames, ends, first index) of some messages."""
    first = chance.randrange(1 << 50)
    encoded, ends = batch.encode_frames_scalar([bodies_of(chance, count)], first, 5, 77)
    return encoded, ends.tolist(), first


def cut(chance: random.Random, data: bytes) -> list[bytes]:
    """Return the data in pieces, split anywhere or into single bytes."""
    if chance.random() < 0.2:
        return [data[at : at + 1] for at in range(len(data))]
    places = sorted(chance.randint(0, len(data)) for _ in range(chance.randint(0, 6)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def damaged(chance: random.Random, data: bytes, share: float) -> bytes:
    """Return the data, sometimes with one byte changed or the end missing."""
    if not data or chance.random() > share:
        return data
    at = chance.randrange(len(data))
    if chance.random() < 0.3:
        return data[:at]
    return data[:at] + bytes([chance.choice([0, 10, 32, 65, 70, 255])]) + data[at + 1 :]


# protocol/frames


def encode(chance: random.Random) -> Answers:
    """Encode bodies as frames."""
    pieces = [bodies_of(chance, count_of(chance)) for _ in range(chance.randint(1, 3))]
    pieces.append(bodies_of(chance, 1))
    arguments = pieces, chance.randrange(1 << 53), chance.randrange(1024), chance.randrange(1 << 60)
    made, plain = batch.encode_frames(*arguments), batch.encode_frames_scalar(*arguments)
    return (bytes(made[0]), made[1].tolist()), (plain[0], plain[1].tolist())


def message_ids(chance: random.Random) -> Answers:
    """Format indexes as ids."""
    node = chance.randrange(1024)
    indexes = [chance.randrange(1 << 54) for _ in range(count_of(chance))]
    made = frames.message_ids(np.array(indexes, np.int64), node)
    plain = [b"%016x" % (node << 54 | index) for index in indexes]
    return made.tolist(), plain


def patch_attempts(chance: random.Random) -> Answers:
    """Set the attempts of each message."""
    data, ends, _ = frames_of(chance, count_of(chance))
    attempts = [chance.choice([1, 2, 255, 256, 65_535, 70_000]) for _ in ends]
    plain = bytearray(data)
    for start, number in zip([0, *ends], attempts, strict=False):
        struct.pack_into(">H", plain, start + 16, min(number, 65_535))
    made = frames.patch_attempts(data, np.array(ends, np.uint32), np.array(attempts, np.int64))
    return bytes(made), bytes(plain)


def patch_timestamps(chance: random.Random) -> Answers:
    """Set the timestamp of each message."""
    data, ends, _ = frames_of(chance, count_of(chance))
    stamps = [chance.randrange(1 << 62) for _ in ends]
    plain = bytearray(data)
    for start, stamp in zip([0, *ends], stamps, strict=False):
        struct.pack_into(">q", plain, start + 8, stamp)
    made = frames.patch_timestamps(data, np.array(ends, np.uint32), np.array(stamps, np.int64))
    return bytes(made), bytes(plain)


# protocol/runs, mpub, parser


def finish_run(chance: random.Random) -> Answers:
    """Parse a run of FINs up to the first line that is anything else."""
    first = chance.randrange(1 << 63)
    step = chance.choice([0, 1, 1, 97])
    lines = [b"FIN %016x\n" % (first + step * k) for k in range(count_of(chance))]
    data = damaged(chance, b"".join(lines), 0.5) + chance.choice([b"", b"NOP\n", b"FIN 01"])
    plain: list[bytes] = []
    at = 0
    while data[at : at + 4] == b"FIN " and data[at + 20 : at + 21] == b"\n":
        if not set(HEX).issuperset(data[at + 4 : at + 20]):
            break
        plain.append(data[at + 4 : at + 20])
        at += 21
    finish = runs.finish_run(data, 0)
    if finish is None:
        return [], [(text, int(text, 16)) for text in plain]
    found = [(finish.id_text(k), int(raw)) for k, raw in enumerate(finish.raw_ids)]
    return found, [(text, int(text, 16)) for text in plain]


def publish_run(chance: random.Random) -> Answers:
    """Parse a run of PUBs up to the first that is incomplete, invalid or of another topic."""
    sizes = sizes_of(chance, count_of(chance, 90))
    data = damaged(chance, b"".join(c.pub("t", chance.randbytes(size)) for size in sizes), 0.5)
    data = LINE + b"\0\0\0\1x" + data + chance.choice([b"", b"PUB u\n\0\0\0\1x", LINE + b"\0"])
    plain, at = [], 0
    while data.startswith(LINE, at) and len(data) >= at + len(LINE) + 4:
        start = at + len(LINE) + 4
        size = int.from_bytes(data[start - 4 : start], "big", signed=True)
        if not 0 < size <= SIZE_MAX or start + size > len(data):
            break
        plain.append((start, size))
        at = start + size
    found = runs.publish_run(data, 0, LINE, SIZE_MAX)
    assert found is not None
    return [(int(a), int(b)) for a, b in zip(found.starts, found.sizes, strict=True)], plain


def walk(chance: random.Random) -> Answers:
    """Parse the messages of an MPUB that arrives in pieces; None: it is incomplete or invalid."""
    sizes = sizes_of(chance, max(1, count_of(chance, 90)))
    parts = [size.to_bytes(4, "big") + chance.randbytes(size) for size in sizes]
    data = damaged(chance, len(sizes).to_bytes(4, "big") + b"".join(parts), 0.3)
    walked, held, found = mpub.MpubProgress(0, SIZE_MAX, 5_000), b"", None
    try:
        for piece in cut(chance, data):
            held += piece
            if walked.advance(held):
                found = [bytes(body) for body in walked.bodies(held)]
                break
    except RemoteError:
        pass
    return found, plain_walk(data)


def plain_walk(data: bytes) -> list[bytes] | None:
    """Parse the messages of an MPUB's body, one by one."""
    count = int.from_bytes(data[:4], "big", signed=True)
    if len(data) < 4 or not 0 < count <= (5_000 - 4) // 5:
        return None
    at, found = 4, []
    for _ in range(count):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        if len(data) < at + 4 or not 0 < size <= SIZE_MAX or at + 4 + size > len(data):
            return None
        found.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def commands_in_pieces(chance: random.Random) -> Answers:
    """Parse a stream split at random, and the same stream byte by byte."""
    parts: list[bytes] = []
    for _ in range(chance.randint(1, 4)):
        kind = chance.randrange(5)
        if kind == 0:
            parts += [c.fin(b"%016x" % chance.randrange(1 << 60)) for _ in range(count_of(chance))]
        elif kind == 1:
            parts += [c.pub("t", chance.randbytes(s)) for s in sizes_of(chance, count_of(chance))]
        elif kind == 2:
            sizes = sizes_of(chance, max(1, count_of(chance)))
            parts.append(c.mpub("t", [chance.randbytes(size) for size in sizes]))
        else:
            parts.append(chance.choice([c.nop(), c.rdy(7), c.dpub("t", 9, b"x"), b"NOP\r\n"]))
    data = damaged(chance, b"".join(parts), 0.3)
    singly = [data[at : at + 1] for at in range(len(data))]
    return parsed_commands(cut(chance, data)), parsed_commands(singly)


def parsed_commands(pieces: list[bytes]) -> list[object]:
    """Return the commands of a stream, in a form that does not depend on the lengths of runs."""
    reader = parser.CommandParser(LIMITS)
    reader.state = c.STATE_SUBSCRIBED
    found: list[object] = []
    try:
        for piece in pieces:
            reader.feed(piece)
            while (command := reader.next()) is not None:
                found += flat(command)
        reader.eof()
    except RemoteError as error:
        found.append(error.frame_text())
    return found


def flat(command: c.Command) -> list[object]:
    """Return the single commands that a command stands for."""
    match command:
        case c.PublishRun(topic, bodies):
            return [("PUB", topic, bytes(body)) for body in bodies]
        case c.MultiPublish(topic, bodies) | c.DeferredPublish(topic, bodies):
            return [(type(command).__name__, topic, *map(bytes, bodies))]
        case c.Finish():
            return [(command.id_text(k), int(raw)) for k, raw in enumerate(command.raw_ids)]
    return [str(command)]


# protocol/batch, log


def stored_dues(chance: random.Random) -> Answers:
    """Encode a batch with due times, and read it again."""
    data, ends, first = frames_of(chance, max(1, count_of(chance)))
    dues = [(k, chance.randrange(1 << 62)) for k in range(len(ends)) if chance.random() < 0.3]
    encoded = b"".join(
        batch.encode(
            data,
            np.array(ends, np.uint32),
            first,
            3,
            publish_time_ns=INDEX_EPOCH_NS,
            log_id_short=7,
            epoch=1,
            file_offset=4_608,
            salt=99,
            dues=dues,
        )
    )
    (found,) = batch.walk(encoded)
    return (bytes(found.frames), found.ends.tolist(), found.dues), (data, ends, dues)


def merge_ranges(chance: random.Random) -> Answers:
    """Return a set of indexes as ranges."""
    count = count_of(chance)
    firsts = [chance.randint(0, 200) for _ in range(count)]
    ends = [first + chance.choice([0, 1, 1, chance.randint(-2, 30)]) for first in firsts]
    return records.merge_ranges(firsts, ends), records.merge_ranges_scalar(firsts, ends)


def block_times(chance: random.Random) -> Answers:
    """Merge blocks, and compare their timestamps and the first message at a time."""
    blocks: list[Block] = []
    index, plain_frames = chance.randrange(1 << 40), b""
    plain_ends: list[int] = []
    stamps: list[int] = []
    first = index
    for _ in range(chance.randint(1, 4)):
        stamp = 1_000 + 10 * len(stamps) + chance.randint(0, 9)
        data, ends = batch.encode_frames_scalar(
            [bodies_of(chance, chance.randint(1, 9))], index, 1, stamp
        )
        blocks.append(Block(index, len(ends), ends, data, 0))
        index += len(ends)
        stamps += [stamp] * len(ends)
        plain_ends += [len(plain_frames) + end for end in ends.tolist()]
        plain_frames += data
    merged = block.merge(blocks)
    at = chance.randint(990, 1_010 + 10 * len(stamps))
    later = [first + k for k, stamp in enumerate(stamps) if stamp >= at]
    found = merged.timestamps(np.arange(first, index)).tolist()
    return (
        (bytes(merged.frames), merged.ends.tolist(), found, block.first_at_time(merged, at)),
        (
            plain_frames,
            plain_ends,
            stamps,
            min(later, default=None),
        ),
    )


# broker


def ranges_of(chance: random.Random) -> Answers:
    """Return ascending indexes as ranges."""
    ascending = sorted({chance.randint(0, 70) for _ in range(count_of(chance))})
    found = slots.ranges_of(np.array(ascending, np.int64))
    return tuple(map(list, found)), slots.ranges_of_few(ascending)


def finishing(chance: random.Random) -> Answers:
    """Finish runs of messages: which are finished, which fail, and which stay in flight."""
    state = {BASE + k: chance.randint(1, 2) for k in range(80) if chance.random() < 0.8}
    tracked = InFlight()
    for index, owner in state.items():
        tracked.note_run(index, index + 1, owner, now_ns=0, deadline_ns=index)
    found: list[object] = []
    plain: list[object] = []
    for _ in range(chance.randint(1, 3)):
        start = BASE + chance.randint(0, 60)
        run: Any = [BASE + chance.randint(-5, 85) for _ in range(max(1, count_of(chance)))]
        if chance.random() < 0.5:
            run = list(range(start, start + max(1, count_of(chance, 30))))
        plain.append(plain_finish(state, run, 1))
        kind = chance.randrange(3)
        if kind == 0 and run == list(range(run[0], run[0] + len(run))):
            run = range(run[0], run[0] + len(run))
        elif kind == 1:
            run = np.array(run, np.int64)
        freed = tracked.finish(run, 1)
        found.append(([*freed.starts], [*freed.ends], freed.freed, freed.failures))
    found.append((tracked.indexes().tolist(), tracked.count))
    plain.append((sorted(state), len(state)))
    return found, plain


def plain_finish(state: dict[int, int], run: list[int], owner: int) -> object:
    """Do the same with a dictionary index -> owner, which is changed."""
    freed, failures = [], []
    for position, index in enumerate(run):
        if state.get(index) == owner:
            freed.append(index)
            del state[index]
        else:
            failures.append((position, NOT_OWNED if index in state else NOT_IN_FLIGHT))
    starts, ends = slots.ranges_of_few(sorted(freed))
    return starts, ends, len(freed), failures


def expiring(chance: random.Random) -> Answers:
    """Record deliveries in bursts, time some out, and release those of one owner."""
    tracked = InFlight()
    state: dict[int, tuple[int, int, int]] = {}
    for owner in (1, 2, 3):
        free = [BASE + k for k in range(90) if BASE + k not in state and chance.random() < 0.3]
        attempts = [chance.randint(1, 9) for _ in free]
        deadline = chance.randint(0, 100)
        tracked.note_many(
            np.array(free, np.int64), np.array(attempts), owner, now_ns=0, deadline_ns=deadline
        )
        state |= {i: (deadline, n, owner) for i, n in zip(free, attempts, strict=True)}
    now, owner = chance.randint(0, 100), chance.randint(1, 3)
    due = sorted(index for index, (deadline, _, _) in state.items() if deadline <= now)
    plain: list[object] = [[(index, *state.pop(index)[1:]) for index in due]]
    theirs = sorted(index for index, (_, _, whose) in state.items() if whose == owner)
    plain.append([(index, *state.pop(index)[1:]) for index in theirs])
    plain.append(sorted((index, n) for index, (_, n, _) in state.items()))
    found: list[object] = [
        list(zip(*(column.tolist() for column in taken), strict=True))
        for taken in (tracked.expire(now), tracked.release_owner(owner))
    ]
    found.append(list(zip(*(column.tolist() for column in tracked.all()), strict=True)))
    return found, plain


def sharing(chance: random.Random) -> Answers:
    """Share a run of a page among owners, then time some out and release the rest."""
    tracked = InFlight()
    counts = [chance.randint(1, 6) for _ in range(chance.randint(1, 6))]
    owners = [chance.randint(1, 4) for _ in counts]
    deadlines = [chance.randint(0, 100) for _ in counts]
    tracked.note_shares(BASE, counts, owners, deadlines, 7)
    each = [
        (owner, due)
        for count, owner, due in zip(counts, owners, deadlines, strict=True)
        for _ in range(count)
    ]
    plain = [(BASE + at, owner, due) for at, (owner, due) in enumerate(each)]
    now = chance.randint(0, 100)
    expired = tracked.expire(now)
    found = [*zip(expired.indexes.tolist(), expired.owners.tolist(), strict=True)]
    left = [owner for owner in range(1, 5) for _ in tracked.release_owner(owner).indexes.tolist()]
    return (found, left, tracked.count), (
        [(index, owner) for index, owner, due in plain if due <= now],
        sorted(owner for _, owner, due in plain if due > now),
        0,
    )


def copy_runs(chance: random.Random) -> Answers:
    """Copy some messages of several blocks, with their attempts."""
    plain = b""
    runs = []
    all_attempts: list[int] = []
    for _ in range(chance.randint(1, 3)):
        data, ends, first = frames_of(chance, max(1, count_of(chance)))
        held = Block(first, len(ends), np.array(ends, np.uint32), data, 0)
        chosen = [k for k in range(len(ends)) if chance.random() < 0.5] or [0]
        for k in chosen:
            number = chance.randint(1, 70_000)
            frame = bytearray(data[ends[k - 1] if k else 0 : ends[k]])
            struct.pack_into(">H", frame, 16, min(number, 65_535))
            plain += frame
            all_attempts.append(number)
        runs.append((held, np.array(chosen, np.int64) + first))
    return bytes(delivery.copy_runs(runs, np.array(all_attempts, np.int64))), plain


PAIRS = (
    Pair("protocol.batch.encode_frames", encode),
    Pair("protocol.frames.message_ids", message_ids),
    Pair("protocol.frames.patch_attempts", patch_attempts),
    Pair("protocol.frames.patch_timestamps", patch_timestamps),
    Pair("protocol.runs.finish_run", finish_run),
    Pair("protocol.runs.publish_run", publish_run),
    Pair("protocol.mpub.MpubProgress", walk),
    Pair("protocol.parser.CommandParser", commands_in_pieces),
    Pair("protocol.batch.encode", stored_dues),
    Pair("log.records.merge_ranges", merge_ranges),
    Pair("log.block.merge", block_times),
    Pair("broker.slots.ranges_of", ranges_of),
    Pair("broker.in_flight.InFlight.finish", finishing),
    Pair("broker.in_flight.InFlight.expire", expiring),
    Pair("broker.in_flight.InFlight.note_shares", sharing),
    Pair("broker.delivery.copy_runs", copy_runs),
)
