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
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import FileSelector, FileType

from sparq.pipeline.maintenance import file_schema, remove_action, replace_files, rewrite
from sparq.pipeline.metrics import visitor_hashes
from sparq.pipeline.storage import TablePlace
from sparq.pipeline.tables import KEEP_S, Table, TableFile, add_action, files_of
from sparq.tools.parser import ToolParser, VersionAction

PROGRAM = "sparq forget"
POLL_SECONDS = 1.0
HASHES = "visitor_hashes"


class ForgottenVisitor:
    """What is to be forgotten.

    Args:
        address: an address as the tables have it.
        user_agent: None: all visitors with this address.
    """

    def __init__(self, address: str, user_agent: str | None = None) -> None:
        self._address = address
        self._user_agent = user_agent
        # 10.0.0.1 is not in 110.0.0.12, but it is in 10.0.0.1:443.
        inside = "[^0-9A-Za-z:]" if ":" in address else "[^0-9A-Za-z]"
        self._pattern = f"(^|{inside}){re.escape(address)}({inside}|$)"
        self._hashes: set[int] = set()

    def rows(self, table: pa.Table) -> pa.Array:
        """Whether each row is about the visitor."""
        found = pa.array([False] * len(table))
        if self._user_agent is not None:
            if {"address", "user_agent"} <= set(table.column_names):
                is_address = pc.equal(table["address"], self._address)
                is_agent = pc.equal(table["user_agent"], self._user_agent)
                found = pc.fill_null(pc.and_(is_address, is_agent), False).combine_chunks()
            return found
        for column in table.columns:
            if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
                has = pc.match_substring_regex(column, self._pattern)
                found = pc.or_(found, pc.fill_null(has, False).combine_chunks())
        return found

    def note(self, table: pa.Table) -> None:
        """Remember the hashes of the visitor from rows with `address` and `user_agent`."""
        if {"address", "user_agent"} <= set(table.column_names):
            mine = table.filter(pc.equal(table["address"], self._address)).combine_chunks()
            mine = mine.filter(self.rows(mine)) if self._user_agent is not None else mine
            hashes = visitor_hashes(mine["address"], mine["user_agent"])
            self._hashes.update(hashes.drop_null().to_pylist())

    def without(self, table: pa.Table) -> pa.Table:
        """The table without the visitor."""
        kept = table.filter(pc.invert(self.rows(table)))
        if HASHES not in table.column_names or not self._hashes:
            return kept
        lists = [
            None if one is None else [each for each in one if each not in self._hashes]
            for one in kept[HASHES].to_pylist()
        ]
        at = kept.column_names.index(HASHES)
        return kept.set_column(at, kept.schema.field(at), pa.array(lists, kept[HASHES].type))

    def is_in(self, table: pa.Table) -> bool:
        """Whether the table has anything about the visitor."""
        if pc.any(self.rows(table)).as_py():
            return True
        if HASHES not in table.column_names or not self._hashes:
            return False
        hashes = pc.list_flatten(table[HASHES])
        return bool(pc.any(pc.is_in(hashes, pa.array(self._hashes, pa.int64()))).as_py())


def forget(
    data: TablePlace,
    visitor: ForgottenVisitor,
    waited: Callable[[str], None] = lambda _: None,
    keep_s: float = KEEP_S,
) -> int:
    """Delete a visitor from all tables of a data folder; returns the number of changed files.

    Args:
        data: the data folder.
        visitor: what is to be forgotten.
        waited: called with a sentence before a wait.
        keep_s: a file that no commit has named for this time is deleted if it has the visitor.
    """
    places = [place for place in _folders(data) if place.exists()]
    for place in places:
        for path in _parquet_files(place):
            _any_batch(place, path, visitor.note)
    return sum(_forget_in(place, visitor, waited, keep_s) for place in places)


def _folders(data: TablePlace) -> list[TablePlace]:
    found = data.files().get_file_info(FileSelector("", allow_not_found=True))
    return [data.of(one.base_name) for one in found if one.type == FileType.Directory]


def _parquet_files(place: TablePlace) -> dict[str, float]:
    """All data files in a table's folder, and when each was written, in seconds since 1970."""
    found = place.files().get_file_info(FileSelector("", recursive=True))
    return {
        one.path.lstrip("/"): one.mtime.timestamp()
        for one in found
        if one.type == FileType.File and one.path.endswith(".parquet")
        if not one.path.lstrip("/").startswith("_")
    }


def _any_batch(place: TablePlace, path: str, check: Callable[[pa.Table], bool | None]) -> bool:
    """Whether `check` is true for a part of a file; false if the file is gone."""
    try:
        with place.files().open_input_file(path) as stream:
            batches = pq.ParquetFile(stream).iter_batches()
            return any(check(pa.Table.from_batches([batch])) for batch in batches)
    except FileNotFoundError:
        return False


def _forget_in(
    place: TablePlace, visitor: ForgottenVisitor, waited: Callable[[str], None], keep_s: float
) -> int:
    """Delete a visitor from one table."""
    changed = 0
    table = place.table()
    while True:
        table.update_incremental()
        files = files_of(table)
        has = [one for one in files if _any_batch(place, one.path, visitor.is_in)]
        changed += sum(_rewritten(place, table, one, visitor) for one in has)
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
        if left:
            waited(f"{place.address}: waiting for {len(left)} files of a batch without a commit")
            time.sleep(POLL_SECONDS)


def _rewritten(
    place: TablePlace, table: DeltaTable, file: TableFile, visitor: ForgottenVisitor
) -> bool:
    """Replace a file by one without the visitor; false if another commit came between."""
    definition = Table(table.metadata().name or "", pa.schema([]), "")
    made = rewrite(place, definition, file_schema(table), [file.path], visitor.without)
    added = [add_action(row) for row in made.to_pylist()]
    return replace_files(table, [*added, remove_action(file, data_change=True)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit status."""
    words = ToolParser(prog=PROGRAM, description="Delete an address or a visitor from the tables.")
    words.add_argument("--version", action=VersionAction)
    words.add_argument("--data", required=True, help="the data folder: a path or a URI")
    words.add_argument("--address", required=True, help="the address, as the tables have it")
    words.add_argument("--user-agent", help="only the visitor with this user agent, word for word")
    words.add_argument(
        "--storage-option", action="append", default=[], metavar="KEY=VALUE",
        help="option of the storage, such as AWS_REGION=eu-central-1; may be repeated",
    )  # fmt: skip
    given = words.parse_args(arguments)
    try:
        options = dict(one.split("=", 1) for one in given.storage_option)
    except ValueError:
        words.error("--storage-option needs the form KEY=VALUE")
    is_path = not re.match(r"[a-z0-9]+:", given.data)
    address = str(Path(given.data).absolute()) if is_path else given.data.rstrip("/")
    if is_path and not Path(address).is_dir():
        words.error(f"--data={given.data}: no such folder")
    said: set[str] = set()

    def wait(sentence: str) -> None:
        if sentence not in said:
            said.add(sentence)
            sys.stderr.write(f"{sentence}\n")

    changed = forget(
        TablePlace(address, options), ForgottenVisitor(given.address, given.user_agent), wait
    )
    sys.stdout.write(f"forgotten: {changed:,} files were changed\n")
    return 0
