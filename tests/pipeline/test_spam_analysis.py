"""The query `spam_analysis`, batch by batch as Spark calls it."""

import json

import pytest

from sparq.pipeline import spam_analysis
from sparq.pipeline.folders import Folders
from sparq.pipeline.generator import generate
from sparq.pipeline.report import newest_findings, scores
from sparq.pipeline.visits import OTHER, PAGE, RESOURCE, ROBOTS_TXT

SIZE, BATCH = 8000, 3000


def test_what_a_click_asked_for(messages):
    """Pages, what they load, robots.txt, and the rest."""
    expected = {
        "/": PAGE, "/a/b": PAGE, "/index.html": PAGE, "/a.php?x=y.css": PAGE, "/v1.2/notes": PAGE,
        "/a.css": RESOURCE, "/favicon.ico?v=2": RESOURCE, "/b/IMG.JPG": RESOURCE,
        "/robots.txt": ROBOTS_TXT, "/blog/feed/": OTHER, "/x.tar.gz": OTHER, "/news.rss": OTHER,
    }  # fmt: skip
    lines = [
        f'1.2.3.4 - - [10/Oct/2025:13:55:36 +0000] "GET {path} HTTP/1.1" 200 1'.encode()
        for path in expected
    ]
    lines.append(b'1.2.3.4 - - [10/Oct/2025:13:55:36 +0000] "-" 408 -')
    rows = spam_analysis.prepared(messages(lines)).toArrow().sort_by("id")

    assert rows["kind"].to_pylist() == [*expected.values(), OTHER]


@pytest.fixture(scope="module")
def day():
    """A small generated day."""
    return generate(SIZE, 11)


def test_the_planted_are_found_through_kills_and_repeats(messages, day, tmp_path):
    """Precision and recall hold; a failed and a repeated batch leave one finding each."""
    said = []

    def publish(topic, bodies):
        assert topic == spam_analysis.SPAM_TOPIC
        if len(said) == 1:
            said.append(None)
            raise ConnectionError("killed")
        said.append([json.loads(body) for body in bodies])

    folders = Folders(tmp_path)
    frames = [
        spam_analysis.prepared(messages(day.lines[at : at + BATCH], at))
        for at in range(0, SIZE, BATCH)
    ]
    sink = spam_analysis.SpamSink(folders, publish)
    sink(frames[0], 0)
    with pytest.raises(ConnectionError):
        sink(frames[1], 1)
    sink(frames[1], 1)
    sink = spam_analysis.SpamSink(folders, publish)
    sink(frames[1], 1)
    sink(frames[2], 2)
    sink.close(3)

    rows = spam_analysis.read(folders).to_pylist()
    revisions = [(row["visitor"], row["reason"], row["revision"]) for row in rows]
    assert len(revisions) == len(set(revisions))
    score = scores(newest_findings(spam_analysis.read(folders)), day.labels)["all"]
    assert score.precision >= 0.95
    assert score.recall >= 0.85  # so few are planted in so small a day that one counts for much
    messages_said = [row for bodies in said if bodies for row in bodies]
    assert {(row["visitor"], row["reason"], row["revision"]) for row in messages_said} == set(
        revisions
    )
    assert all(row["message_ids"] and row["evidence"] for row in messages_said)
