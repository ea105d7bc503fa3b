"""The text of many messages as one buffer, and columns that are stretches of it.

A column is found as numbers, where its text begins and ends in each row; the bytes are copied once,
when it becomes an Arrow array.

1. All work is done by numpy or Arrow on whole batches; there is no loop over rows.
2. Rows lie in the buffer in their order, and so do the stretches of one column.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

Integers = np.ndarray[tuple[int], np.dtype[np.int64]]
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]
Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

QUOTE, SPACE, QUESTION_MARK, BACKSLASH, DASH = b'" ?\\-'
_NEWLINE, _RETURN, _DELETE = b"\n\r\x7f"


NOWHERE = np.iinfo(np.int64).max


def bytes_table(signs: bytes) -> Mask:
    """A table for `Text.made_of`: the bytes that are allowed."""
    table = np.zeros(256, bool)
    table[list(signs)] = True
    return table


DIGITS = bytes_table(b"0123456789")
ADDRESS_BYTES_MAX = 255
SIZE_BYTES_MAX = 18
STATUS_BYTES = 3
ADDRESS_SIGNS = bytes_table(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._:%-")


def next_place(places: Integers, after: Integers) -> Integers:
    """For each of `after` the first place at or after it; NOWHERE if there is none.

    `places` must be ascending.
    """
    if not len(places):
        return np.full(len(after), NOWHERE)
    number = np.searchsorted(places, after)
    return np.where(number < len(places), numbered_place(places, number), NOWHERE)


def numbered_place(places: Integers, numbers: Integers) -> Integers:
    """`places[numbers]`; a number that is too high gives the last place, or 0 if there are none."""
    if not len(places):
        return np.zeros(len(numbers), np.int64)
    return places[np.minimum(numbers, len(places) - 1)]


@dataclass(frozen=True, slots=True)
class Spans:
    """A stretch of the text for each row; where there is none, its start is -1.

    Attributes:
        starts: the first byte's place in the buffer, int64[rows].
        ends: the place after the last byte.
    """

    starts: Integers
    ends: Integers

    @classmethod
    def none(cls, rows: int) -> Spans:
        """No text in any row."""
        return cls(np.full(rows, -1, np.int64), np.full(rows, -1, np.int64))

    def present(self) -> Mask:
        """The rows that have some text, empty or not."""
        return self.starts >= 0

    def only(self, rows: Mask) -> Spans:
        """The same in the rows that are chosen, none in the others."""
        return Spans(np.where(rows, self.starts, -1), self.ends)

    def or_else(self, others: Spans) -> Spans:
        """The others where there is none."""
        mine = self.present()
        return Spans(
            np.where(mine, self.starts, others.starts), np.where(mine, self.ends, others.ends)
        )

    def moved(self, by: Integers) -> Spans:
        """The same text in another buffer."""
        return Spans(np.where(self.present(), self.starts + by, -1), self.ends + by)

    def at(self, rows: Mask | Integers) -> Spans:
        """The rows that are chosen, and no others."""
        return Spans(self.starts[rows], self.ends[rows])


@dataclass(frozen=True, slots=True)
class FoundClicks:
    """The clicks of some rows, as places in a text.

    Attributes:
        rows: the rows' numbers, ascending.
        micros: event time in microseconds, a row each.
        spans: the stretch of each column, a row each.
    """

    rows: Integers
    micros: Integers
    spans: dict[str, Spans]

    def where(self, chosen: Mask) -> FoundClicks:
        """The chosen ones."""
        if chosen.all():
            return self
        spans = {name: span.at(chosen) for name, span in self.spans.items()}
        return FoundClicks(self.rows[chosen], self.micros[chosen], spans)


@dataclass(frozen=True, slots=True)
class TextsApart:
    """The texts of some rows of a column that are no stretches of the messages.

    Attributes:
        rows: the rows' numbers.
        buffer: the messages, followed by the texts.
        offsets: where each text begins in the buffer, and where the last one ends.
        present: whether there is a text; else the row is null.
    """

    rows: Integers
    buffer: pa.Buffer
    offsets: Integers
    present: Mask


class Text:
    """The messages of a batch.

    Args:
        bodies: one message a row, no nulls.
    """

    def __init__(self, bodies: pa.BinaryArray) -> None:
        self._bodies = bodies
        stored = np.frombuffer(bodies.buffers()[1], np.int32)
        stored = stored[bodies.offset : bodies.offset + len(bodies) + 1]
        offsets: Integers = stored.astype(np.int64)
        data = bodies.buffers()[2] or pa.py_buffer(b"")
        # A slice shares its buffer with rows before and after it, which are left out.
        self.buffer = data.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        self.bytes: Bytes = np.frombuffer(self.buffer, np.uint8)
        # One mask for all questions about the bytes: making it anew took longer than the answer.
        self._mask: Mask = np.empty(len(self.bytes), bool)
        offsets -= offsets[0]
        self.starts: Integers = offsets[:-1]
        self.ends: Integers = self._trimmed(offsets)

    def __len__(self) -> int:
        return len(self.starts)

    def _trimmed(self, offsets: Integers) -> Integers:
        """Where each row ends, line ends at its end not counted."""
        starts, ends = offsets[:-1], offsets[1:].copy()
        rows = np.flatnonzero(ends > starts)
        while len(rows):
            last = self.bytes[ends[rows] - 1]
            rows = rows[(last == _NEWLINE) | (last == _RETURN)]
            ends[rows] -= 1
            rows = rows[ends[rows] > starts[rows]]
        return ends

    def places(self, sign: int) -> Integers:
        """Where a byte stands, in all rows."""
        return np.flatnonzero(np.equal(self.bytes, sign, out=self._mask))

    @cached_property
    def quotes(self) -> Integers:
        """Where quotation marks stand."""
        return self.places(QUOTE)

    @cached_property
    def spaces(self) -> Integers:
        """Where spaces stand."""
        return self.places(SPACE)

    @cached_property
    def not_ascii(self) -> Integers:
        """Where bytes stand that are no ASCII."""
        return self._unprintable[self.bytes[self._unprintable] > _DELETE]

    @cached_property
    def has_escape_or_control(self) -> Mask:
        """The rows with a backslash or a control character, line ends at their end aside."""
        control = self._unprintable[self.bytes[self._unprintable] <= _DELETE]
        mask = np.zeros(len(self), bool)
        for places in (control, self.places(BACKSLASH)):
            rows = self.rows_of(places)
            mask[rows[places < self.ends[rows]]] = True
        return mask

    @cached_property
    def _unprintable(self) -> Integers:
        """Where control characters and bytes that are no ASCII stand."""
        above = np.subtract(self.bytes, SPACE, out=self._mask.view(np.uint8))
        return np.flatnonzero(np.greater_equal(above, _DELETE - SPACE, out=self._mask))

    @cached_property
    def not_utf8(self) -> Mask:
        """The rows whose bytes are no valid UTF-8."""
        mask = np.zeros(len(self), bool)
        rows = np.unique(self.rows_of(self.not_ascii))
        bodies = self._bodies.take(pa.array(rows))
        try:
            bodies.cast(pa.string())
        except pa.ArrowInvalid:
            mask[rows] = [not _is_utf8(body.as_py()) for body in bodies]
        return mask

    def rows_of(self, places: Integers) -> Integers:
        """The row in which each place lies."""
        return np.searchsorted(self.starts, places, "right") - 1

    def is_byte(self, places: Integers, sign: int) -> Mask:
        """Whether a byte stands at each place; never at one outside of the buffer."""
        if not len(self.bytes):
            return np.zeros(len(places), bool)
        inside = (places >= 0) & (places < len(self.bytes))
        found: Mask = inside & (self.bytes[np.where(inside, places, 0)] == sign)
        return found

    def grid(self, places: Integers, count: int) -> Bytes:
        """`count` bytes from each place on, uint8[count, places]; places too near the end move."""
        if len(self.bytes) < count:
            return np.zeros((count, len(places)), np.uint8)
        windows = np.lib.stride_tricks.sliding_window_view(self.bytes, count)
        return np.ascontiguousarray(windows[np.clip(places, 0, len(windows) - 1)].T)

    def strings(self, spans: Spans, apart: TextsApart | None = None) -> pa.StringArray:
        """The text of each row's stretch; null where there is none.

        Args:
            spans: a stretch for each row of this text, or of some of them.
            apart: texts that stand in place of some rows' stretches.
        """
        count = len(spans.starts)
        if not count:
            return pa.array([], pa.string())
        present = spans.present()
        # Offsets never go back: a row without text has an empty stretch where the last one ended.
        ends = np.maximum.accumulate(np.where(present, spans.ends, 0))
        added = apart.offsets if apart else np.zeros(0, np.int64)
        offsets = np.empty(2 * count + len(added), np.int32)
        offsets[: 2 * count : 2] = np.where(present, spans.starts, ends)
        offsets[1 : 2 * count : 2] = ends
        offsets[2 * count :] = added
        # The stretches are every second element, what lies between them the others: nothing is
        # copied but what `take` takes.
        taken = np.arange(0, 2 * count, 2)
        if apart:
            taken[apart.rows] = np.arange(2 * count, len(offsets) - 1)
            present[apart.rows] = apart.present
        buffer = apart.buffer if apart else self.buffer
        all_elements = pa.Array.from_buffers(
            pa.string(), len(offsets) - 1, [None, pa.py_buffer(offsets), buffer]
        )
        strings = all_elements.take(pa.array(taken))
        if present.all():
            return strings
        valid = pa.py_buffer(np.packbits(present, bitorder="little"))
        return pa.Array.from_buffers(pa.string(), count, [valid, *strings.buffers()[1:]])

    def texts_apart(
        self, rows: Integers, columns: dict[str, list[str | None]]
    ) -> dict[str, TextsApart]:
        """Texts for some rows of some columns, in one buffer after the messages."""
        encoded = {
            name: [(text or "").encode() for text in texts] for name, texts in columns.items()
        }
        further = (text for texts in encoded.values() for text in texts)
        buffer = pa.py_buffer(b"".join([memoryview(self.buffer), *further]))
        found, at = {}, self.buffer.size
        for name, texts in encoded.items():
            offsets = np.cumsum([at, *map(len, texts)], dtype=np.int64)
            present = np.array([text is not None for text in columns[name]], bool)
            found[name] = TextsApart(rows, buffer, offsets, present)
            at = int(offsets[-1])
        return found

    def is_ascii(self, spans: Spans) -> Mask:
        """Which stretches have ASCII alone; those of rows without one, too."""
        return next_place(self.not_ascii, spans.starts) >= spans.ends

    def made_of(self, spans: Spans, table: Mask) -> Mask:
        """Which stretches have no byte but those for which `table`, bool[256], is true."""
        taken = self.strings(spans)
        ok = np.ones(len(taken), bool)
        if not len(taken):
            return ok
        data = taken.buffers()[2]
        bad = ~table[np.frombuffer(data, np.uint8)] if data else np.zeros(0, bool)
        if bad.any():
            offsets = np.frombuffer(taken.buffers()[1], np.int32)[: len(taken) + 1]
            ok[np.searchsorted(offsets, np.flatnonzero(bad[: offsets[-1]]), "right") - 1] = False
        return ok


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
