"""`sparq report`: a page about the clicks of any period, made from the tables.

    sparq report --data data [--since -7d] [--until 2026-11-20T10:00] [--output report.html]

1. Times are in UTC: a day, a time of a day, or a time before now in minutes, hours, days or weeks.
2. If the tables are those of `sparq run`, the page also has the section about the run.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from deltalake.exceptions import DeltaError
from polars.exceptions import PolarsError

from sparq.pipeline.report.figures import figures_of
from sparq.pipeline.report.page import page_of
from sparq.pipeline.run.folders import Folders, read_json
from sparq.pipeline.storage import add_data_flags, place_of_flags
from sparq.tools.parser import ToolParser, VersionAction

PROGRAM = "sparq report"
UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def time_of(text: str) -> datetime:
    """A time in UTC, such as -7d, 2026-11-20 or 2026-11-20T10:00.

    Raises:
        argparse.ArgumentTypeError: the text is not a time.
    """
    if before := re.fullmatch(r"-(\d{1,6})([mhdw])", text):
        return datetime.now(UTC) - timedelta(**{UNITS[before[2]]: int(before[1])})
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        sentence = f"{text} is no time: use -7d (m, h, d, w), 2026-11-20 or 2026-11-20T10:00"
        raise argparse.ArgumentTypeError(sentence) from None
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def main(arguments: Sequence[str]) -> int:
    """Run the program; returns the exit status."""
    words = ToolParser(prog=PROGRAM, description="Make a page about the clicks of any period.")
    words.add_argument("--version", action=VersionAction)
    add_data_flags(words)
    words.add_argument(
        "--since", type=time_of, metavar="TIME",
        help="begin here: -7d (m, h, d or w before now), 2026-11-20 or 2026-11-20T10:00, in UTC",
    )  # fmt: skip
    words.add_argument("--until", type=time_of, metavar="TIME", help="end before this time")
    words.add_argument(
        "--output", type=Path, metavar="FILE",
        help="default: report.html in the data folder; here if that is a URI",
    )  # fmt: skip
    # argparse would take the -7d of `--since -7d` for a flag.
    given = words.parse_args(
        re.sub(r"(--since|--until)\0-", r"\1=-", "\0".join(arguments)).split("\0")
    )
    place = place_of_flags(words, given)
    folder = Folders(Path(place.address))
    try:
        figures = figures_of(place, given.since, given.until)
    except (OSError, DeltaError, PolarsError) as error:
        words.error(f"--data={given.data}: {error}")
    if not figures["clicks"]:
        words.error(f"--data={given.data}: there are no clicks of this period")
    run = read_json(folder.data / "report.json") if folder.mode() == "run" else {}
    samples = read_json(folder.run / "samples.json").get("samples", ())
    output = given.output or (folder.data if folder.data.is_dir() else Path()) / "report.html"
    page = page_of(run.get("source", given.data), figures, run, samples)
    output.write_text(page, encoding="utf-8")
    sys.stdout.write(f"{output}\n")
    return 0
