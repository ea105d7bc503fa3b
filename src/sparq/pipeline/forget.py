"""`sparq forget`: deletes what the tables have about an address, or about one visitor.

A row goes if one of its texts or binary values contains the address as a whole word; with a user
agent, if its columns `address` and `user_agent` have both. The visitor's hashes go from lists
(`visitor_hashes`); other figures stay. Afterwards no file of any version has the visitor, so a
query that is reading the tables may fail. What a batch is writing is waited for, at most KEEP_S.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileType

from sparq.options.declare import option
from sparq.options.kinds import STRING
from sparq.options.mistakes import Mistake, shown
from sparq.pipeline.maintenance import replace_files, rewrite
from sparq.pipeline.metrics import hashes_of, visitor_hashes
from sparq.pipeline.storage import TableOptions, TablePlace, place_given
from sparq.pipeline.tables import KEEP_S, files_of, schema_of
from sparq.program.flags import parse, status_of

PROGRAM = "sparq forget"
POLL_SECONDS = 1.0


class ForgottenVisitor:
    """A visitor with an address as the tables have it; without a user agent all of this address."""

    def __init__(self, address: str, user_agent: str | None = None) -> None:
        self.address = address
        self._user_agent = user_agent
        # 10.0.0.1 is not in 110.0.0.12, but it is in 10.0.0.1:443.
        inside = "[^0-9A-Za-z:]" if ":" in address else "[^0-9A-Za-z]"
        self._pattern = f"(^|{inside}){re.escape(address)}({inside}|$)"
        self._hashes: set[int] = set()
        # Other words than addresses would take rows along that are not about the visitor.
        self.is_known = False
        with suppress(ValueError):
            self.is_known = bool(ip_address(address))
        if user_agent is None:  # counted by a metric of the user's own
            self._hashes.update(hashes_of(pa.array([address])).to_pylist())

    def note(self, rows: pa.RecordBatch) -> None:
        """Remember the visitor's hashes."""
        mine = rows.filter(self._is_by(rows))
        if len(mine):
            self.is_known = True
            columns = (pa.chunked_array([mine[name]]) for name in ("address", "user_agent"))
            self._hashes.update(visitor_hashes(*columns).to_pylist())

    def _is_by(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Whether each row is by the visitor, as its columns `address` and `user_agent` say."""
        if not {"address", "user_agent"} <= set(rows.schema.names):
            return pa.repeat(pa.scalar(False), len(rows))
        found = pc.equal(rows["address"], self.address)
        if self._user_agent is not None:
            found = pc.and_(found, pc.equal(rows["user_agent"], self._user_agent))
        return pc.fill_null(found, False)

    def without(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows without the visitor; if nothing is about the visitor, the same object."""
        found = self._is_by(rows)
        for column in rows.columns if self._user_agent is None else ():
            if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
                has = pc.match_substring_regex(column, self._pattern)
                found = pc.or_(found, pc.fill_null(has, False))
        if pc.any(found).as_py():
            rows = rows.filter(pc.invert(found))
        known = pa.array(self._hashes, pa.int64())
        for at, field in enumerate(rows.schema):
            if not field.name.endswith("_hashes"):
                continue
            lists = rows[field.name]
            if pc.any(pc.is_in(pc.list_flatten(lists), known)).as_py():
                kept = pl.Series(lists).list.set_difference([*self._hashes])
                rows = rows.set_column(at, field, kept.to_arrow().cast(field.type))
        return rows

    def is_in(self, place: TablePlace, path: str) -> bool:
        """Whether a file has anything about the visitor; false if the file is gone."""
        return any(self.without(rows) is not rows for rows in _batches(place, path))


def _batches(place: TablePlace, path: str) -> Iterator[pa.RecordBatch]:
    """The rows of a file; none if the file is gone."""
    try:
        with place.files().open_input_file(path) as stream:
            yield from pq.ParquetFile(stream).iter_batches()
    except FileNotFoundError:
        return


def forget(data: TablePlace, visitor: ForgottenVisitor, keep_s: float = KEEP_S) -> int:
    """Delete a visitor from all tables of a data folder; returns the number of changed files.

    A file with the visitor that no commit has named for `keep_s` is deleted.
    """
    folders = data.files().get_file_info(FileSelector("", allow_not_found=True))
    named = [data.of(one.base_name) for one in folders if one.type == FileType.Directory]
    places = [place for place in named if place.exists()]
    for place in places:
        for path in place.data_files():
            for rows in _batches(place, path):
                visitor.note(rows)
    if not visitor.is_known:
        raise Mistake(
            f"--address={shown(visitor.address)} is no IP address, and no click has it in its"
            " column address"
        )
    return sum(_forget_in(place, visitor, keep_s) for place in places)


def _forget_in(place: TablePlace, visitor: ForgottenVisitor, keep_s: float) -> int:
    """Delete a visitor from one table."""
    changed, has_waited = 0, False
    table = place.table()

    def without(rows: ds.Scanner) -> Iterator[pa.RecordBatch]:
        return map(visitor.without, rows.to_batches())

    while True:
        table.update_incremental()
        for file in files_of(table):
            if visitor.is_in(place, file.path):
                made = rewrite(place, schema_of(table), [file.path], without)
                # Not if another commit came between: the next round finds the file again.
                changed += replace_files(table, [file], made, data_change=True)
        # Deletes replaced files, also those that merges have replaced a moment ago.
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)
        table.update_incremental()
        live = {one.path for one in files_of(table)}
        left = {path: at for path, at in place.data_files().items() if visitor.is_in(place, path)}
        if not left:
            return changed
        for path in left.keys() - live:
            if left[path] < time.time() - keep_s:
                place.files().delete_file(path)
            elif not has_waited:
                has_waited = True
                sys.stderr.write(f"{place.address}: waiting for a batch to commit its files\n")
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetOptions(TableOptions):
    """Options of `sparq forget`."""

    address: str = option("", "the address, as the tables have it (required)")
    user_agent: str | None = option(
        None, "only the visitor with this user agent, word for word", kind=STRING
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit status."""
    about = "Deletes an address or a visitor from the tables.\n\n"
    given = parse(ForgetOptions, PROGRAM, arguments, about, takes_file=False)

    def work() -> int:
        place = place_given(given)
        if given.address.strip(" -") != given.address or not given.address:
            # "-": there was none
            raise Mistake(f"--address={shown(given.address)}: give an address")
        changed = forget(place, ForgottenVisitor(given.address, given.user_agent))
        sys.stdout.write(f"forgotten: {changed:,} files were changed\n")
        return 0

    return status_of(PROGRAM, work)
