"""The text format: Prometheus' own parser reads what sparq writes."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sparq.daemon.access.access import Access
from sparq.daemon.access.tokens import make
from sparq.daemon.prometheus_text import Family, access_families, labels, process_registry

words = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\r\x0b\x0c"))


@given(words, st.integers(-(2**53), 2**53) | st.floats(allow_nan=False))
def test_any_label_and_value_can_be_parsed_again(text: str, value: float) -> None:
    """Backslashes, quotes and line breaks are escaped; numbers are exact."""
    family = Family("a_total", "counter", "Some help")
    family.add(value, labels(name=text, other="x"))
    (found,) = text_string_to_metric_families(family.text())

    (sample,) = found.samples
    assert (found.type, found.documentation) == ("counter", "Some help")
    assert (sample.name, sample.value) == ("a_total", value)
    assert sample.labels == {"name": text, "other": "x"}


def test_a_family_without_samples_is_omitted() -> None:
    """A family without samples is an empty text."""
    assert Family("a", "gauge", "b").text() == ""


def test_the_buckets_of_a_histogram_are_cumulative() -> None:
    """A histogram's buckets are cumulative, followed by sum and count."""
    family = Family("h_seconds", "histogram", "Help")
    family.add_histogram((0.5, 1.0), (3, 0, 2), 7.25)
    (found,) = text_string_to_metric_families(family.text())

    assert [(s.name, s.labels.get("le"), s.value) for s in found.samples] == [
        ("h_seconds_bucket", "0.5", 3),
        ("h_seconds_bucket", "1.0", 3),
        ("h_seconds_bucket", "+Inf", 5),
        ("h_seconds_sum", None, 7.25),
        ("h_seconds_count", None, 5),
    ]


def test_metrics_of_the_process_are_included() -> None:
    """The process metrics include CPU, open files and interpreter, without `_created` series."""
    text = generate_latest(process_registry()).decode()
    names = {family.name for family in text_string_to_metric_families(text)}

    assert {"process_cpu_seconds", "process_open_fds", "python_info"} <= names
    assert "_created" not in text


def test_access_checks_have_metrics(tmp_path: Path) -> None:
    """With access checks, refusals are counted by reason; with a token file, also its tokens."""
    file = tmp_path / "tokens"
    lines = [make("a", "read")[1], make("b", "read", "2020-01-01")[1]]
    file.write_text("\n".join(lines))
    access = Access({}, token_file=str(file))
    access.refuse(access.identify("x", "192.0.2.1"), "SUB", reason="forbidden")

    assert [] == list(access_families(None, "nsqd"))
    assert [] == list(access_families(Access({}), "nsqd"))
    assert ["nsqd_refused_requests_total"] == [
        family.name for family in access_families(Access({}, token="t" * 20), "nsqd")
    ]
    text = "".join(family.text() for family in access_families(access, "nsqd"))
    for line in (
        'nsqd_refused_requests_total{reason="unauthorised"} 0',
        'nsqd_refused_requests_total{reason="expired"} 0',
        'nsqd_refused_requests_total{reason="forbidden"} 1',
        "nsqd_tokens 1",
    ):
        assert line in text.splitlines()
