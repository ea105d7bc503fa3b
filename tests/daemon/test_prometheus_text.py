"""The text format: what is written here, Prometheus' parser reads."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sparq.daemon.prometheus_text import Family, labels, process_registry

words = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\r\x0b\x0c"))


@given(words, st.integers(-(2**53), 2**53) | st.floats(allow_nan=False))
def test_any_label_and_value_is_read_back(text: str, value: float) -> None:
    """Backslashes, quotes and line breaks are escaped; numbers are exact."""
    family = Family("a_total", "counter", "Some help")
    family.add(value, labels(name=text, other="x"))
    (found,) = text_string_to_metric_families(family.text())

    (sample,) = found.samples
    assert (found.type, found.documentation) == ("counter", "Some help")
    assert (sample.name, sample.value) == ("a_total", value)
    assert sample.labels == {"name": text, "other": "x"}


def test_a_family_without_samples_is_not_there() -> None:
    """Prometheus has nothing to keep of it."""
    assert Family("a", "gauge", "b").text() == ""


def test_a_histogram_adds_its_buckets_up() -> None:
    """Each bucket has what is in it and in all below."""
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


def test_the_process_tells_of_itself() -> None:
    """CPU, memory, open files, interpreter and collector, without `_created` series."""
    text = generate_latest(process_registry()).decode()
    names = {family.name for family in text_string_to_metric_families(text)}

    assert {"process_cpu_seconds", "process_open_fds", "python_info"} <= names
    assert "_created" not in text
