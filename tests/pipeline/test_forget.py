"""Forgetting an address or a visitor: afterwards no file of any version has it."""

import time
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import Transaction

from sparq.pipeline import archive, forget, metrics
from sparq.pipeline.forget import ForgottenVisitor
from sparq.pipeline.maintenance import OPEN, merge
from sparq.pipeline.metrics import hashes_of
from sparq.pipeline.own_metrics import MetricTable, OwnMetric
from sparq.pipeline.reading.schema import CLICK_SCHEMA
from sparq.pipeline.sink import Sink
from sparq.pipeline.spam_analysis import SESSIONS
from sparq.pipeline.storage import TablePlace
from sparq.pipeline.tables import files_of, opened, transact, write_files
from tests.pipeline.stored import process, stored

GONE, NEAR = "203.0.113.7", "203.0.113.77"
LINE = '%s - - [02/Mar/2026:10:00:0%d +0000] "GET %s HTTP/1.1" 200 9 "-" "%s"'
LINES = [
    LINE % (GONE, 0, "/a", "curl/8.5"),
    LINE % (GONE, 1, "/a", "Mozilla/5.0"),
    LINE % (NEAR, 2, "/a", "curl/8.5"),
    LINE % ("1.2.3.4", 3, f"/?from={GONE}:80", "curl/8.5"),
    f"{GONE} is no click",
    "no click either",
]


@pytest.fixture
def data(spark, query, messages, tmp_path):
    """A data folder whose tables have older versions, merged files and files of a killed task."""
    own = MetricTable(OwnMetric("addresses", "count(distinct address)"), CLICK_SCHEMA)
    folder = str(tmp_path)
    outputs = [archive.output(), metrics.output([own])]
    sinks = [(Sink(spark, folder, one), one.split) for one in outputs]
    for number in range(2):
        for sink, split in sinks:
            lines = [line.encode() for line in LINES]
            process(sink, messages(lines, first=number * len(LINES)), number, split)
    for sink, _ in sinks:
        for table in sink.tables.opened.values():
            table.delta.update_incremental()
            assert merge(spark, table, files_of(table.delta))
    orphan = tmp_path / "clicks" / "date=2026-03-02" / "11111111-9-x.parquet"
    pq.write_table(pa.table({"address": [GONE], "body": [LINES[0].encode()]}), orphan)
    return tmp_path


def files_with(data, *values):
    """All files below the folder, logs included, that have one of the values."""
    found = []
    for path in (path for path in data.rglob("*") if path.is_file()):
        text = path.read_bytes()
        if path.suffix == ".parquet":
            text += repr(pq.read_table(path, partitioning=None).to_pylist()).encode()
        if any(f"{value}".encode() in text.replace(NEAR.encode(), b"") for value in values):
            found.append(path)
    return found


def hashes(*visitors):
    """The hashes of visitors, as the tables have them."""
    addresses, agents = (pa.chunked_array([list(column)]) for column in zip(*visitors, strict=True))
    return metrics.visitor_hashes(addresses, agents).to_pylist()


def test_no_file_has_an_address_after_it_is_forgotten(data):
    """Every row with the address is gone from every file, and the visitors' hashes, too."""
    values = [GONE, *hashes((GONE, "curl/8.5"), (GONE, "Mozilla/5.0"))]
    values += hashes_of(pa.array([GONE])).to_pylist()
    assert len(files_with(data, *values)) > 5

    assert 4 == forget.forget(TablePlace(str(data)), ForgottenVisitor(GONE), keep_s=0)
    clicks, (minute,) = stored(data, "clicks"), stored(data, "minutes").to_pylist()

    assert [] == files_with(data, *values)
    assert [NEAR] * 2 == clicks["address"].to_pylist()
    assert ["no click either"] * 2 == [
        bytes(body).decode() for body in stored(data, "rejected")["body"].to_pylist()
    ]
    assert (8, 2) == (minute["clicks"], minute["visitors"])
    assert 0 == forget.forget(TablePlace(str(data)), ForgottenVisitor(GONE), keep_s=0)


def test_one_visitor_of_an_address_is_forgotten(data):
    """With a user agent only the rows of this visitor go."""
    forget.forget(TablePlace(str(data)), ForgottenVisitor(GONE, "curl/8.5"), keep_s=0)
    clicks = stored(data, "clicks").to_pylist()
    visitors = {(row["address"], row["user_agent"]) for row in clicks}

    assert {(GONE, "Mozilla/5.0"), (NEAR, "curl/8.5"), ("1.2.3.4", "curl/8.5")} == visitors
    assert [] == files_with(data, *hashes((GONE, "curl/8.5")))
    assert files_with(data, *hashes((GONE, "Mozilla/5.0")))


def test_rows_about_open_sessions_stay_in_files_of_their_own(tmp_path):
    """The next start removes such files: the prefix of their names must survive."""
    place = TablePlace(str(tmp_path / "sessions"))
    table, at = opened(place, SESSIONS), datetime(2026, 3, 2, tzinfo=UTC)
    rows = [{"address": address, "first_time": at} for address in (GONE, NEAR)]
    part = {"sessions": pa.Table.from_pylist(rows, SESSIONS.schema)}
    (written,) = write_files([part], {"sessions": (SESSIONS, place)}, f"{OPEN}topic-")
    transact(table, Transaction("end", 1), written.to_pylist())

    assert 1 == forget.forget(TablePlace(str(tmp_path)), ForgottenVisitor(GONE), keep_s=0)
    (file,) = files_of(place.table())
    assert file.name.startswith(f"{OPEN}topic-")
    assert [NEAR] == place.table().to_pyarrow_table()["address"].to_pylist()


def test_a_file_without_a_commit_is_waited_for(spark, messages, data, capsys, monkeypatch):
    """A file that a batch may be about to commit is not deleted before its time.

    A batch that Spark repeats after its rows were forgotten is still recognised.
    """
    pauses = []

    def pause(seconds):
        assert files_with(data, GONE)
        pauses.append(seconds)
        time.sleep(seconds)

    monkeypatch.setattr(forget, "time", SimpleNamespace(time=time.time, sleep=pause))
    forget.forget(TablePlace(str(data)), ForgottenVisitor(GONE), keep_s=4)
    assert pauses
    assert f"{data}/clicks: waiting for a batch to commit its files\n" == capsys.readouterr().err
    sink = Sink(spark, str(data), archive.output())
    process(sink, messages([line.encode() for line in LINES], first=6), 1, archive.split)

    assert [] == files_with(data, GONE)


@pytest.mark.parametrize(
    ("address", "text", "expected"),
    [
        (GONE, b"\xff 203.0.113.7:443", True),
        (GONE, b"x203.0.113.7", False),
        ("2001:db8::1", b"[2001:db8::1]:443", True),
        ("2001:db8::1", b"2001:db8::1:5", False),
    ],
)
def test_an_address_is_a_whole_word(address, text, expected):
    """A longer address that contains this one is another one; bodies may have any bytes."""
    rows = pa.record_batch({"body": [text]})

    assert expected == (ForgottenVisitor(address).without(rows) is not rows)


@pytest.mark.parametrize("address", ["", "-", " ", "order", "203.0.113.777", "1.2.3"])
def test_other_words_than_addresses_are_refused(data, address, capsys):
    """A word that is no address would take other rows along: nothing is deleted."""
    before = len(stored(data, "clicks"))
    assert 1 == forget.main(["--data", str(data), f"--address={address}"])

    assert before == len(stored(data, "clicks"))
    assert capsys.readouterr().err.startswith("sparq forget: --address=")


def test_the_program_reports_what_it_did(data, capsys):
    """The command prints how many files it changed; a wrong folder is one sentence."""
    (data / "clicks" / "date=2026-03-02" / "11111111-9-x.parquet").unlink()
    assert 0 == forget.main(["--data", str(data), "--address", GONE])
    assert 1 == forget.main(["--data", str(data / "none"), "--address", GONE])
    printed = capsys.readouterr()

    assert "forgotten: 4 files were changed\n" == printed.out
    assert f"sparq forget: --data={data}/none: no such folder\n" == printed.err
