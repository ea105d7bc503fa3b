"""`sparq forget`: deletes what the tables have about an address, or about one visitor.

    sparq forget --data data --address 203.0.113.7 [--user-agent "Mozilla/5.0 ..."]

1. A row goes if one of its texts or binary values contains the address as a whole word; with a user
   agent, if its columns `address` and `user_agent` have both. The visitor's hashes go from lists
   (`visitor_hashes`); other figures stay.
2. Afterwards no file of any version has it, files included that no commit names. So a query that is
   reading the tables may fail: repeat it.
3. The pipeline may run meanwhile. What a batch is writing at that moment is waited for, at most
   KEEP_S.
4. What is not a table keeps it for its own time: the topics' logs, and Spark's state.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileType

from sparq.pipeline.maintenance import replace_files, rewrite
from sparq.pipeline.metrics import visitor_hashes
from sparq.pipeline.storage import TablePlace, add_data_flags, place_of_flags
from sparq.pipeline.tables import KEEP_S, add_action, files_of, schema_of
from sparq.pipeline.totals import hashes_of
from sparq.tools.parser import ToolParser, VersionAction

PROGRAM = "sparq forget"
POLL_SECONDS = 1.0
WHO = {"address", "user_agent"}


class ForgottenVisitor:
    """A visitor with an address as the tables have it; without a user agent all of this address."""

    def __init__(self, address: str, user_agent: str | None = None) -> None:
        self._address = address
        self._user_agent = user_agent
        # 10.0.0.1 is not in 110.0.0.12, but it is in 10.0.0.1:443.
        inside = "[^0-9A-Za-z:]" if ":" in address else "[^0-9A-Za-z]"
        self._pattern = f"(^|{inside}){re.escape(address)}({inside}|$)"
        self._hashes: set[int] = set()
        if user_agent is None:  # counted by a metric of the user's own
            self._hashes.update(hashes_of(pa.array([address])).to_pylist())

    def note(self, rows: pa.RecordBatch) -> bool:
        """Remember the hashes of the visitor from rows with `address` and `user_agent`."""
        if set(rows.schema.names) >= WHO:
            mine = rows.select(["address", "user_agent"]).filter(
                pc.equal(rows["address"], self._address)
            )
            if self._user_agent is not None:
                mine = mine.filter(self._has(mine))
            hashes = visitor_hashes(*(pa.chunked_array([column]) for column in mine.columns))
            self._hashes.update(hashes.drop_null().to_pylist())
        return False

    def _has(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Whether each row is about the visitor."""
        found = pa.repeat(pa.scalar(False), len(rows))
        if self._user_agent is not None:
            if set(rows.schema.names) >= WHO:
                is_agent = pc.equal(rows["user_agent"], self._user_agent)
                found = pc.and_(pc.equal(rows["address"], self._address), is_agent)
            return pc.fill_null(found, False)
        for column in rows.columns:
            if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
                has = pc.match_substring_regex(column, self._pattern)
                found = pc.or_(found, pc.fill_null(has, False))
        return found

    def without(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows without the visitor."""
        kept = rows.filter(pc.invert(self._has(rows)))
        for at, field in enumerate(kept.schema):
            if field.name.endswith("_hashes") and self._has_hashes(kept[field.name]):
                lists = [
                    None if one is None else [each for each in one if each not in self._hashes]
                    for one in kept[field.name].to_pylist()
                ]
                kept = kept.set_column(at, field, pa.array(lists, field.type))
        return kept

    def is_in(self, rows: pa.RecordBatch) -> bool:
        """Whether the rows have anything about the visitor."""
        hashes = (rows[name] for name in rows.schema.names if name.endswith("_hashes"))
        return bool(pc.any(self._has(rows)).as_py()) or any(map(self._has_hashes, hashes))

    def _has_hashes(self, lists: pa.ListArray) -> bool:
        known = pa.array(self._hashes, pa.int64())
        return bool(pc.any(pc.is_in(pc.list_flatten(lists), known)).as_py())


def forget(
    data: TablePlace,
    visitor: ForgottenVisitor,
    waited: Callable[[str], object] = lambda _: None,
    keep_s: float = KEEP_S,
) -> int:
    """Delete a visitor from all tables of a data folder; returns the number of changed files.

    `waited` gets a sentence before a wait. A file with the visitor that no commit has named for
    `keep_s` is deleted.
    """
    folders = data.files().get_file_info(FileSelector("", allow_not_found=True))
    named = [data.of(one.base_name) for one in folders if one.type == FileType.Directory]
    places = [place for place in named if place.exists()]
    for place in places:
        for path in _parquet_files(place):
            _any_batch(place, path, visitor.note)
    return sum(_forget_in(place, visitor, waited, keep_s) for place in places)


def _parquet_files(place: TablePlace) -> dict[str, float]:
    """All data files in a table's folder, and when each was written, in seconds since 1970."""
    found = place.files().get_file_info(FileSelector("", recursive=True))
    return {
        one.path.lstrip("/"): one.mtime.timestamp()
        for one in found
        if one.type == FileType.File and one.path.endswith(".parquet")
        if not one.path.lstrip("/").startswith("_")
    }


def _any_batch(place: TablePlace, path: str, check: Callable[[pa.RecordBatch], bool]) -> bool:
    """Whether `check` is true for a part of a file; false if the file is gone."""
    try:
        with place.files().open_input_file(path) as stream:
            return any(map(check, pq.ParquetFile(stream).iter_batches()))
    except FileNotFoundError:
        return False


def _forget_in(
    place: TablePlace, visitor: ForgottenVisitor, waited: Callable[[str], object], keep_s: float
) -> int:
    """Delete a visitor from one table."""
    changed, has_waited = 0, False
    table = place.table()
    while True:
        table.update_incremental()
        for file in files_of(table):
            if _any_batch(place, file.path, visitor.is_in):
                made = rewrite(place, schema_of(table), [file.path], visitor.without)
                added = [add_action(row) for row in made]
                # Not if another commit came between: the next round finds the file again.
                changed += replace_files(table, [file], added, data_change=True)
        # Deletes replaced files, also those that merges have replaced a moment ago.
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)
        table.update_incremental()
        live = {one.path for one in files_of(table)}
        others = {path: at for path, at in _parquet_files(place).items() if path not in live}
        left = {path: at for path, at in others.items() if _any_batch(place, path, visitor.is_in)}
        for path in [path for path, at in left.items() if at < time.time() - keep_s]:
            place.files().delete_file(path)
            del left[path]
        if not left and not any(_any_batch(place, path, visitor.is_in) for path in live):
            return changed
        if left and not has_waited:
            has_waited = True
            waited(f"{place.address}: waiting for {len(left)} files of a batch without a commit")
        if left:
            time.sleep(POLL_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit status."""
    words = ToolParser(prog=PROGRAM, description="Delete an address or a visitor from the tables.")
    words.add_argument("--version", action=VersionAction)
    add_data_flags(words)
    words.add_argument("--address", required=True, help="the address, as the tables have it")
    words.add_argument("--user-agent", help="only the visitor with this user agent, word for word")
    given = words.parse_args(arguments)
    visitor = ForgottenVisitor(given.address, given.user_agent)
    place = place_of_flags(words, given)
    changed = forget(place, visitor, lambda sentence: sys.stderr.write(f"{sentence}\n"))
    sys.stdout.write(f"forgotten: {changed:,} files were changed\n")
    return 0
