"""`sparq report`: a page about the clicks of any period, made from the tables.

    sparq report --data data [--since -7d] [--until 2026-11-20T10:00] [--output report.html]

If the tables are those of `sparq run`, the page also has the section about the run.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from deltalake.exceptions import DeltaError
from polars.exceptions import PolarsError

from sparq.pipeline.folders import read_json
from sparq.pipeline.report.figures import figures_of
from sparq.pipeline.report.page import page_of
from sparq.pipeline.settings import utc_text
from sparq.pipeline.storage import parsed
from sparq.tools.parser import ToolParser, VersionAction

PROGRAM = "sparq report"


def time_of(text: str) -> datetime:
    """A time such as -7d, 2026-11-20 or 2026-11-20T10:00, in UTC unless it has an offset."""
    try:
        return datetime.fromisoformat(utc_text(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is no time: {error}") from None


def main(arguments: Sequence[str]) -> int:
    """Run the program; returns the exit status."""
    words = ToolParser(prog=PROGRAM, description="Make a page about the clicks of any period.")
    words.add_argument("--version", action=VersionAction)
    since = "begin here: -7d, -2h, 2026-11-20 or 2026-11-20T10:00, in UTC"
    words.add_argument("--since", type=time_of, metavar="TIME", help=since)
    words.add_argument("--until", type=time_of, metavar="TIME", help="end before this time")
    output = "default: report.html in the data folder; here if that is a URI"
    words.add_argument("--output", type=Path, metavar="FILE", help=output)
    # argparse would take the -7d of `--since -7d` for a flag.
    joined = re.sub(r"(--since|--until)\0-", r"\1=-", "\0".join(arguments))
    given, place = parsed(words, joined.split("\0"))
    folder = Path(place.address)
    try:
        figures = figures_of(place, given.since, given.until)
    except (OSError, DeltaError, PolarsError) as error:
        words.error(f"--data={given.data}: {error}")
    if not figures["clicks"]:
        words.error(f"--data={given.data}: there are no clicks of this period")
    run = read_json(folder / "report.json")
    made = given.output or (folder if folder.is_dir() else Path()) / "report.html"
    page = page_of(run.get("source", given.data), figures, run)
    made.write_text(page, encoding="utf-8")
    sys.stdout.write(f"{made}\n")
    return 0
