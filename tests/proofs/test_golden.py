"""Data paths of earlier versions, opened by this one."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from proofs.outcome import Plan

from proofs import golden, golden_write
from sparq.program.stdout import sparq_version
from tests.support.open_files import files_closed_below


@pytest.fixture(autouse=True)
def closed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the proof's folder below the test's, and close files that its brokers leave open."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with files_closed_below(tmp_path):
        yield


def test_every_golden_data_path_is_read() -> None:
    """This version reads every golden data path.

    A reader that knows only the newest format fails the proof.
    """
    outcome = golden.prove(Plan(seed=1, count=1))

    assert outcome.held, (outcome.figures, outcome.control)
    assert not outcome.skipped


def test_this_version_has_golden_data_paths() -> None:
    """A release includes data paths that it wrote."""
    names = {pack.parent.name.partition("-")[0] for pack in golden.packs()}

    assert sparq_version() in names


def test_golden_data_paths_are_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command writes a new version's data paths, which this version opens.

    It refuses a version that already has some.
    """
    monkeypatch.setattr(golden_write, "GOLDEN", tmp_path)
    monkeypatch.setattr(golden, "GOLDEN", tmp_path)

    assert golden_write.main(["9.9.9"]) == 0
    assert golden.prove(Plan(seed=1, count=1)).held
    assert golden_write.main(["9.9.9"]) == 1
    assert golden_write.main([]) == 2


def test_a_different_body_fails_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data path with one message that differs from its document fails the proof."""
    pack = next(pack for pack in golden.packs() if pack.name.startswith("deferred"))
    folder = tmp_path / "1.0"
    folder.mkdir()
    (folder / pack.name).write_bytes(pack.read_bytes())
    document = json.loads(pack.with_name("deferred.json").read_text())
    document["topics"]["later"]["replayed"][0] = "another"
    (folder / "deferred.json").write_text(json.dumps(document))
    monkeypatch.setattr(golden, "GOLDEN", tmp_path)

    assert not golden.prove(Plan(seed=1, count=1, control=False)).held
