"""A short run of the hostile proof with its controls, and tests of its parts."""

import pytest
from proofs.hostile import PEAK_BYTES_MAX, noticed, prove
from proofs.hostile_parts import mutate
from proofs.hostile_parts.worker import Found, Target, work
from proofs.outcome import Plan

COUNT = 3_000


@pytest.mark.timeout(300)
def test_hostile_bytes_cause_only_documented_errors() -> None:
    """Hostile input causes no exception, hang or memory growth; without a guard it does."""
    outcome = prove(Plan(seed=20261121, count=COUNT))

    assert outcome.held, f"{outcome.figures}\n{outcome.control}"
    assert "undocumented exceptions 0 · hangs > 1 s 0" in outcome.figures


def test_a_hang_is_interrupted_and_found() -> None:
    """An execution that would not end is interrupted, and is a finding with its input."""

    def wait(data: bytes) -> object:
        while data:
            pass
        return None

    found = work(Target("waits", 1, [b"seed"], wait), 5, "seed", 1)

    assert {"hangs"} == noticed(found)
    assert "waits: None for b" in found.hangs[0]


def test_an_exception_is_found_with_its_place_and_input() -> None:
    """The finding names the place and the input bytes."""

    def stumble(data: bytes) -> object:
        return data[1 << 20]

    found = work(Target("stumbles", 1, [b"seed"], stumble), 100, "seed", 3)

    assert 3 == len(found.exceptions)
    assert found.exceptions[0].startswith("stumbles: IndexError('index out of range') at test_")


def test_kept_memory_and_peak_memory_are_findings() -> None:
    """Kept memory or peak memory alone is a finding."""
    assert {"memory"} == noticed(Found("keeps", kept_bytes=1 << 30))
    assert {"memory"} == noticed(Found("needs", peak_bytes=PEAK_BYTES_MAX + 1))
    assert set() == noticed(Found("neither", kept_bytes=1, peak_bytes=PEAK_BYTES_MAX))


def test_a_seed_repeats_its_inputs_and_chunks_add_up() -> None:
    """A seed gives the same bytes in the same order; the chunks of an input add up to it."""

    def inputs(seed: str) -> list[bytes]:
        mutator = mutate.Mutator(seed, [b"PUB topic\n", b"x" * 500], [b"word"])
        return [mutator.next() for _ in range(2_000)]

    first = inputs("1")

    assert first == inputs("1")
    assert first != inputs("2")
    for data in first:
        _, chunks = mutate.serve(data)
        assert data[mutate.HEAD_SIZE :] == b"".join(chunks) or len(data) < mutate.HEAD_SIZE
