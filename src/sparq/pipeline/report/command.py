"""`sparq report`: a page about the clicks of any period, made from the tables.

    sparq report --data data [--since -7d] [--until 2026-11-20T10:00] [--output report.html]

If the tables are those of `sparq run`, the page also has the section about the run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from deltalake.exceptions import DeltaError
from polars.exceptions import PolarsError

from sparq.options.declare import option
from sparq.options.kinds import STRING
from sparq.options.mistakes import Mistake
from sparq.pipeline.folders import read_json
from sparq.pipeline.report.figures import figures_of
from sparq.pipeline.report.page import page_of
from sparq.pipeline.settings import utc_text
from sparq.pipeline.storage import TableOptions, place_given
from sparq.program.flags import parse, status_of

PROGRAM = "sparq report"


def time_of(text: str) -> datetime:
    """A time such as -7d, 2026-11-20 or 2026-11-20T10:00, in UTC unless it has an offset."""
    return datetime.fromisoformat(utc_text(text))


TIME = STRING._replace(name="time", parse=time_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions(TableOptions):
    """Options of `sparq report`."""

    since: datetime | None = option(
        None, "begin here: -7d, -2h, 2026-11-20 or 2026-11-20T10:00, in UTC", kind=TIME
    )
    until: datetime | None = option(None, "end before this time", kind=TIME)
    output: str = option(
        "", "file to write (default: report.html in the data folder; here if that is a URI)"
    )


def main(arguments: Sequence[str]) -> int:
    """Run the program; returns the exit status."""
    about = "Makes a page about the clicks of any period.\n\n"
    given = parse(ReportOptions, PROGRAM, arguments, about, takes_file=False)
    return status_of(PROGRAM, lambda: _report(given))


def _report(given: ReportOptions) -> int:
    place = place_given(given)
    folder = Path(place.address)
    try:
        figures = figures_of(place, given.since, given.until)
    except (OSError, DeltaError, PolarsError) as error:
        raise Mistake(f"--data={given.data}: {error}") from None
    if not figures["clicks"]:
        raise Mistake(f"--data={given.data}: there are no clicks of this period")
    run = read_json(folder / "report.json")
    beside = folder if folder.is_dir() else Path()
    made = Path(given.output or beside / "report.html")
    page = page_of(run.get("source", given.data), figures, run)
    made.write_text(page, encoding="utf-8")
    sys.stdout.write(f"{made}\n")
    return 0
