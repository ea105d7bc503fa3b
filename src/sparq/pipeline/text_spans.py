"""The text of many messages as one buffer, and columns as stretches of this buffer.

A column is found as numbers: where its text begins and ends in each row. The bytes are copied only
once, when the column becomes an Arrow array.

1. numpy or Arrow does all work, on whole batches; there is no loop over rows.
2. Rows follow each other in the buffer in their order, and so do the stretches of one column.
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
    """A table of the allowed bytes, for `Text.made_of`."""
    table = np.zeros(256, bool)
    table[list(signs)] = True
    return table


DIGITS = bytes_table(b"0123456789")
ADDRESS_BYTES_MAX = 255
# 18 digits always fit into int64; with 19, one row could make Arrow's cast of the column raise.
SIZE_BYTES_MAX = 18
STATUS_BYTES = 3
ADDRESS_SIGNS = bytes_table(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._:%-")


def next_place(places: Integers, after: Integers) -> Integers:
    """The first place at or after each of `after`; NOWHERE if there is none.

    `places` must be ascending.
    """
    if not len(places):
        return np.full(len(after), NOWHERE)
    number = np.searchsorted(places, after)
    return np.where(number < len(places), numbered_place(places, number), NOWHERE)


def numbered_place(places: Integers, numbers: Integers) -> Integers:
    """`places[numbers]`; the last place for a number that is too high; 0 if there are no places."""
    if not len(places):
        return np.zeros(len(numbers), np.int64)
    return places[np.minimum(numbers, len(places) - 1)]


@dataclass(frozen=True, slots=True)
class Spans:
    """A stretch of the text for each row; a row without one has start -1.

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
        """The rows that have a text, empty or not."""
        return self.starts >= 0

    def only(self, rows: Mask) -> Spans:
        """The stretches of the chosen rows; the other rows have none."""
        return Spans(np.where(rows, self.starts, -1), self.ends)

    def or_else(self, others: Spans) -> Spans:
        """These stretches; in rows without one, those of `others`."""
        mine = self.present()
        return Spans(
            np.where(mine, self.starts, others.starts), np.where(mine, self.ends, others.ends)
        )

    def moved(self, by: Integers) -> Spans:
        """The same text in another buffer, where it is moved by `by` bytes."""
        return Spans(np.where(self.present(), self.starts + by, -1), self.ends + by)

    def at(self, rows: Mask | Integers) -> Spans:
        """Only the chosen rows."""
        return Spans(self.starts[rows], self.ends[rows])


@dataclass(frozen=True, slots=True)
class FoundClicks:
    """The clicks of some rows, as places in a text.

    Attributes:
        rows: the rows' numbers, ascending.
        micros: event time of each row, in microseconds.
        spans: by column, the stretch of each row.
    """

    rows: Integers
    micros: Integers
    spans: dict[str, Spans]

    def where(self, chosen: Mask) -> FoundClicks:
        """Only the chosen clicks."""
        if chosen.all():
            return self
        spans = {name: span.at(chosen) for name, span in self.spans.items()}
        return FoundClicks(self.rows[chosen], self.micros[chosen], spans)


@dataclass(frozen=True, slots=True)
class DetachedTexts:
    """Texts of a column that are not stretches of the messages, for some rows.

    Attributes:
        rows: the rows' numbers.
        buffer: the messages, followed by these texts.
        offsets: start of each text in the buffer, and the end of the last one.
        present: whether a row has a text; otherwise it is null.
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
        # One mask, reused by all searches for a byte: a new one took longer than the search.
        self._mask: Mask = np.empty(len(self.bytes), bool)
        offsets -= offsets[0]
        self.starts: Integers = offsets[:-1]
        self.ends: Integers = self._trimmed(offsets)

    def __len__(self) -> int:
        return len(self.starts)

    def _trimmed(self, offsets: Integers) -> Integers:
        """The end of each row, without the line terminators at its end."""
        starts, ends = offsets[:-1], offsets[1:].copy()
        rows = np.flatnonzero(ends > starts)
        while len(rows):
            last = self.bytes[ends[rows] - 1]
            rows = rows[(last == _NEWLINE) | (last == _RETURN)]
            ends[rows] -= 1
            rows = rows[ends[rows] > starts[rows]]
        return ends

    def places(self, sign: int) -> Integers:
        """The places of a byte, in all rows."""
        return np.flatnonzero(np.equal(self.bytes, sign, out=self._mask))

    @cached_property
    def quotes(self) -> Integers:
        """The places of quotation marks."""
        return self.places(QUOTE)

    @cached_property
    def spaces(self) -> Integers:
        """The places of spaces."""
        return self.places(SPACE)

    @cached_property
    def not_ascii(self) -> Integers:
        """The places of bytes that are not ASCII."""
        return self._unprintable[self.bytes[self._unprintable] > _DELETE]

    @cached_property
    def has_escape_or_control(self) -> Mask:
        """The rows with a backslash or control character, except line terminators at the end."""
        control = self._unprintable[self.bytes[self._unprintable] <= _DELETE]
        mask = np.zeros(len(self), bool)
        for places in (control, self.places(BACKSLASH)):
            rows = self.rows_of(places)
            mask[rows[places < self.ends[rows]]] = True
        return mask

    @cached_property
    def _unprintable(self) -> Integers:
        """The places of control characters and of bytes that are not ASCII."""
        # One comparison finds both kinds: unsigned subtraction wraps control characters around to
        # high values. Both steps work in the same memory.
        above = np.subtract(self.bytes, SPACE, out=self._mask.view(np.uint8))
        return np.flatnonzero(np.greater_equal(above, _DELETE - SPACE, out=self._mask))

    @cached_property
    def not_utf8(self) -> Mask:
        """The rows whose bytes are not valid UTF-8."""
        mask = np.zeros(len(self), bool)
        rows = np.unique(self.rows_of(self.not_ascii))
        bodies = self._bodies.take(pa.array(rows))
        try:
            # Arrow checks all rows at once but does not tell which one is wrong: only then each is
            # checked alone.
            bodies.cast(pa.string())
        except pa.ArrowInvalid:
            mask[rows] = [not _is_utf8(body.as_py()) for body in bodies]
        return mask

    def rows_of(self, places: Integers) -> Integers:
        """The row of each place."""
        return np.searchsorted(self.starts, places, "right") - 1

    def is_byte(self, places: Integers, sign: int) -> Mask:
        """Whether each place has this byte; false for places outside the buffer."""
        if not len(self.bytes):
            return np.zeros(len(places), bool)
        inside = (places >= 0) & (places < len(self.bytes))
        found: Mask = inside & (self.bytes[np.where(inside, places, 0)] == sign)
        return found

    def grid(self, places: Integers, count: int) -> Bytes:
        """`count` bytes from each place, uint8[count, places]; places near the end move back."""
        if len(self.bytes) < count:
            return np.zeros((count, len(places)), np.uint8)
        windows = np.lib.stride_tricks.sliding_window_view(self.bytes, count)
        return np.ascontiguousarray(windows[np.clip(places, 0, len(windows) - 1)].T)

    def strings(self, spans: Spans, apart: DetachedTexts | None = None) -> pa.StringArray:
        """The text of each row's stretch; null for rows without one.

        Args:
            spans: a stretch for each row of this text, or for some of them.
            apart: texts that replace the stretches of some rows.
        """
        count = len(spans.starts)
        if not count:
            return pa.array([], pa.string())
        present = spans.present()
        # Offsets must not decrease: a row without text has an empty stretch at the previous end.
        ends = np.maximum.accumulate(np.where(present, spans.ends, 0))
        added = apart.offsets if apart else np.zeros(0, np.int64)
        offsets = np.empty(2 * count + len(added), np.int32)
        offsets[: 2 * count : 2] = np.where(present, spans.starts, ends)
        offsets[1 : 2 * count : 2] = ends
        offsets[2 * count :] = added
        # Even elements are the stretches, odd ones the text between them. Only `take` copies
        # anything.
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
    ) -> dict[str, DetachedTexts]:
        """Store texts for some rows of some columns in one buffer, after the messages."""
        encoded = {
            name: [(text or "").encode() for text in texts] for name, texts in columns.items()
        }
        further = (text for texts in encoded.values() for text in texts)
        buffer = pa.py_buffer(b"".join([memoryview(self.buffer), *further]))
        found, at = {}, self.buffer.size
        for name, texts in encoded.items():
            offsets = np.cumsum([at, *map(len, texts)], dtype=np.int64)
            present = np.array([text is not None for text in columns[name]], bool)
            found[name] = DetachedTexts(rows, buffer, offsets, present)
            at = int(offsets[-1])
        return found

    def is_ascii(self, spans: Spans) -> Mask:
        """For each row, whether its stretch is pure ASCII; true if the row has no stretch."""
        return next_place(self.not_ascii, spans.starts) >= spans.ends

    def made_of(self, spans: Spans, table: Mask) -> Mask:
        """Which stretches have only bytes for which `table`, bool[256], is true."""
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
