"""Page texts by hash, and the top pages of each minute."""

from collections import defaultdict

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.minutes_state.page_texts import (
    EMPTY,
    PAGE_CHARACTERS_MAX,
    TOP_PAGES,
    PageTexts,
    candidates,
    shortened,
    top_pages,
)
from tests.pipeline.minutes_state.twin import shown

TEXTS = st.dictionaries(st.integers(-10, 10), st.just(""), max_size=8).map(
    lambda found: {page: f"/{page}" for page in found}
)


def texts(found):
    pages = sorted(found)
    return PageTexts(np.array(pages, np.int64), pa.array([found[at] for at in pages], pa.string()))


def plain(held):
    return dict(zip(held.pages.tolist(), held.texts.to_pylist(), strict=True))


@given(st.lists(TEXTS, max_size=4), st.sets(st.integers(-10, 10)))
def test_each_text_is_stored_once(parts, some):
    """Repeated texts are stored once; `only` keeps the given pages; `of` finds each text."""
    held = EMPTY.with_more([texts(part) for part in parts])
    expected = {page: text for part in parts for page, text in part.items()}

    assert plain(held) == expected
    assert held.pages.tolist() == sorted(expected)
    assert plain(held.only(np.array([*some], np.int64))) == {
        page: text for page, text in expected.items() if page in some
    }
    wanted = sorted(expected, reverse=True)
    assert held.of(np.array(wanted, np.int64)).to_pylist() == [expected[page] for page in wanted]


@given(st.lists(st.tuples(st.sampled_from("aé€😀"), st.integers(495, 505)), max_size=6))
def test_long_pages_are_cut(pages):
    """A page is cut to 500 characters; a hash keeps pages with the same beginning distinct."""
    long = [character * length for character, length in pages]
    cut = shortened(pa.array(long, pa.string())).to_pylist()

    assert cut == [shown(page) for page in long]
    assert len(set(cut)) == len(set(long))
    assert max(map(len, cut), default=0) <= PAGE_CHARACTERS_MAX


ROWS = st.dictionaries(
    st.tuples(st.integers(0, 3), st.text("aé€z/", max_size=3)), st.integers(1, 4), max_size=60
)


@given(ROWS)
def test_the_top_pages_equal_those_of_a_plain_sort(found):
    """Top pages are sorted by clicks, then by UTF-8 text; the candidates suffice to find them."""
    rows = np.array([row for row, _ in found], np.int64)
    clicks = np.array([*found.values()], np.int64)
    names = pa.array([text for _, text in found], pa.string())
    ranked = defaultdict(list)
    for (row, text), count in sorted(found.items(), key=lambda one: (-one[1], one[0][1].encode())):
        ranked[row].append({"page": text, "clicks": count})
    expected = [ranked[row][:TOP_PAGES] for row in range(5)]
    best = candidates(rows, clicks)
    few = top_pages(rows[best], clicks[best], names.take(pa.array(best)), 5)

    assert expected == top_pages(rows, clicks, names, 5).to_pylist() == few.to_pylist()


def test_only_pages_near_the_top_are_candidates():
    """Texts are looked up only for pages near the top, not for all pages of a minute."""
    clicks = np.arange(1000)

    assert sorted(candidates(np.zeros(1000, np.int64), clicks).tolist()) == [*range(990, 1000)]
