"""What partitions send to the buckets: every click, page and rejected message exactly once."""

from collections import Counter

import pytest

from sparq.pipeline import packing
from sparq.pipeline.minutes_state import minutes, packer, page_texts
from sparq.pipeline.minutes_state.output import REJECTED_SCHEMA
from tests.pipeline.minutes_state.buckets import hashed, message, table

BUCKETS = 4


def sent(messages, buckets=BUCKETS):
    """(minutes, texts, rejected) of each bucket, as Arrow."""
    blobs = packer.blobs_of(table(messages, 7), buckets)
    return [packing.from_blob(blob, packer.BLOB_SCHEMAS) for blob in blobs]


CLICKS = [
    message(60 * minute + second, f"v{visitor}", f"/{visitor % 3}", status=100 * visitor)
    for minute in (3, 7)
    for second in range(2)
    for visitor in range(9)
]


def test_a_click_counts_once_in_its_visitors_bucket():
    """A click counts in its visitor's bucket only, so that sums over buckets are exact."""
    clicks, visitors = Counter(), {}
    for bucket, (held, _, _) in enumerate(sent(CLICKS)):
        for row in held.to_pylist():
            clicks[row["minute"]] += row["clicks"]
            for visitor in row["visitors"]:
                assert visitor % BUCKETS == bucket
                visitors.setdefault((row["minute"], visitor), bucket)

    assert clicks == {3: 18, 7: 18}
    assert {(minute, hashed(f"v{n}")) for minute in (3, 7) for n in range(9)} == set(visitors)


def test_all_clicks_of_a_page_count_in_one_bucket():
    """All clicks of a page count in one bucket, and the page's text is sent there."""
    pages = Counter()
    for bucket, (held, texts, _) in enumerate(sent(CLICKS)):
        known = set(texts["page"].to_pylist())
        for row in held.to_pylist():
            for page, clicks in zip(row["pages"], row["page_clicks"], strict=True):
                assert page % BUCKETS == bucket
                assert page in known
                pages[row["minute"], page] += clicks

    assert pages == {(minute, hashed(f"/{n}")): 6 for minute in (3, 7) for n in range(3)}


def test_every_bucket_gets_every_minute_of_a_batch():
    """Every bucket gets every minute of the batch: it must write a row even without clicks."""
    for held, _, _ in sent([message(60, "v"), message(300, "v")]):
        assert held["minute"].to_pylist() == [1, 5]


@pytest.mark.parametrize(
    ("status", "name"),
    [(None, "other"), (99, "other"), (100, "1xx"), (599, "5xx"), (600, "other"), (999, "other")],
)
def test_each_status_counts_in_one_class(status, name):
    """A status outside 100 to 599, or none, counts as `other`."""
    (held, _, _) = sent([message(status=status)], buckets=1)[0]
    row = held.to_pylist()[0]

    assert {key: row[f"status_{key}"] for key in minutes.STATUS_CLASSES} == {
        key: int(key == name) for key in minutes.STATUS_CLASSES
    }


def test_huge_sizes_saturate_at_sum_max():
    """Sizes saturate at SUM_MAX: a log line may claim 10^18 bytes."""
    clicks = [message(bytes=10**18 - 1) for _ in range(20)]
    (held, _, _) = sent([*clicks, message(60, bytes=7)], buckets=1)[0]

    assert held["bytes"].to_pylist() == [minutes.SUM_MAX, 7]


def test_a_request_without_a_page_counts_as_a_click():
    """A broken request line counts as a click and adds no page."""
    (held, texts, _) = sent([message(page=None)], buckets=1)[0]

    assert held["clicks"].to_pylist() == [1]
    assert held["pages"].to_pylist() == [[]]
    assert len(texts) == 0


def test_a_rejected_message_is_sent_whole_to_one_bucket():
    """A rejected message goes to bucket `index pmod buckets`: a flood of them spreads evenly."""
    broken = [message(reason="why", body=b"\xff%d" % at, index=at) for at in range(6)]
    found = [refused for _, _, refused in sent([*broken, *CLICKS])]

    assert [refused["index"].to_pylist() for refused in found] == [[0, 4], [1, 5], [2], [3]]
    assert found[1].to_pylist()[0] == {
        "id": f"{1:016x}",
        "nsqd": "a",
        "index": 1,
        "timestamp": found[1]["timestamp"][0].as_py(),
        "reason": "why",
        "body": b"\xff1",
    }


def test_a_partition_with_only_rejected_messages_is_sent():
    """Rejected messages are kept, and their publish time advances the low mark's clock."""
    rejected = table([message(reason="why", published_s=9)], 7)
    rows = [*packing.pack_partition(rejected.to_batches(), packer.blobs_of, BUCKETS)]

    assert [row.num_rows for row in rows] == [BUCKETS]
    received = packing.receive([rows[0].to_pandas()])
    assert received.header == packing.BucketHeader({}, 9, 7)
    added, _, refused = packer.received(received.blobs)
    assert (len(added), len(refused)) == (0, 1)


def test_an_empty_partition_sends_nothing():
    """An empty partition sends no row: it knows no batch time."""
    assert [*packing.pack_partition(table([], 7).to_batches(), packer.blobs_of, BUCKETS)] == []


def test_a_row_without_clicks_is_small():
    """A row without content is below 3,000 bytes: most buckets of a small batch are empty."""
    blob = packer.blobs_of(table([message()], 7), 64)[0]
    schemas = (minutes.SCHEMA, page_texts.SCHEMA, REJECTED_SCHEMA)

    assert [len(part) for part in packing.from_blob(blob, schemas)] == [1, 0, 0]
    assert len(blob) < 3000
