"""What a click asked for, by its page: a page, a part of one, robots.txt, or something else."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline.visits import OTHER, PAGE, RESOURCE, ROBOTS_TXT

# What a page loads by itself, by the ending of its name.
# fmt: off
RESOURCE_ENDINGS = (
    "css", "js", "mjs", "map", "json", "png", "jpg", "jpeg", "gif", "svg", "ico", "webp", "avif",
    "bmp", "woff", "woff2", "ttf", "otf", "eot", "mp4", "webm", "mp3", "ogg", "wasm",
)
# Neither page nor part of one: feeds and downloads.
OTHER_ENDINGS = (
    "rss", "rdf", "atom", "xml", "txt", "pdf", "zip", "gz", "tgz", "bz2", "xz", "rpm", "deb", "jar",
    "exe", "dmg", "iso",
)
# fmt: on
_ENDING = r"\.(?P<ending>[0-9A-Za-z]{2,5})$"
_FEED = r"/(?:feed|rss|atom)/?$"


def kinds_of(pages: pa.Array) -> npt.NDArray[np.int8]:
    """PAGE, RESOURCE, ROBOTS_TXT or OTHER of each page.

    Args:
        pages: paths without queries; null where the request line was broken.
    """
    endings = pc.utf8_lower(pc.struct_field(pc.extract_regex(pages, _ENDING), "ending"))
    kinds = np.full(len(pages), PAGE, np.int8)
    kinds[_marks(pc.is_in(endings, pa.array(RESOURCE_ENDINGS)))] = RESOURCE
    other = pc.is_in(endings, pa.array(OTHER_ENDINGS))
    kinds[_marks(other) | _marks(pc.match_substring_regex(pages, _FEED))] = OTHER
    kinds[_marks(pc.is_null(pages))] = OTHER
    kinds[_marks(pc.equal(pages, "/robots.txt"))] = ROBOTS_TXT
    return kinds


def _marks(marks: pa.Array) -> npt.NDArray[np.bool_]:
    """With null as false."""
    found: npt.NDArray[np.bool_] = pc.fill_null(marks, False).to_numpy(zero_copy_only=False)
    return found
