"""`sparq report`: a page about any period; a mistake is one sentence."""

import json
import shutil

import pytest

from sparq.cli import main as sparq
from tests.pipeline.report.test_page import RUN


@pytest.fixture
def folder(data, tmp_path):
    """A copy of the data folder."""
    return shutil.copytree(data.address, tmp_path / "data")


def test_the_page_is_written_into_the_data_folder(folder, capsys):
    """Without further flags it is about all clicks."""
    assert 0 == sparq(["report", "--data", str(folder)])
    assert f"{folder}/report.html\n" == capsys.readouterr().out
    page = (folder / "report.html").read_text()
    assert "2 Mar 2026" in page
    assert "The run" not in page


def test_a_period_and_a_file_are_chosen(folder, tmp_path):
    """A time before now may begin with a minus sign."""
    file = tmp_path / "page.html"
    arguments = ["--since", "-5000d", "--until", "2026-03-02T18:00", "--output", str(file)]

    assert 0 == sparq(["report", "--data", str(folder), *arguments])
    assert "to 2 Mar 2026 18:00 UTC" in file.read_text()


def test_the_page_of_a_run_has_its_section(folder):
    """A data folder that `sparq run` has made has facts about the run."""
    report = {**RUN, "source": "my log", "restarts": ["spark"]}
    (folder / "report.json").write_text(json.dumps(report))
    assert 0 == sparq(["report", "--data", str(folder)])
    page = (folder / "report.html").read_text()

    for text in ("Audit passed", "my log", "Restarted during the run: spark"):
        assert text in page


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--data", "nowhere"], "--data=nowhere: no such folder"),
        (["--data", "DATA", "--since", "2030-01-01"], "there are no clicks of this period"),
        (["--data", "DATA", "--since", "soon"], "--since=soon: write 2026-11-21T10:00:00Z"),
    ],
)
def test_a_mistake_is_one_sentence(data, capsys, arguments, sentence):
    """It names the flag, and the exit status is 1."""
    words = ["report", *(data.address if one == "DATA" else one for one in arguments)]
    try:
        assert 1 == sparq(words)
    except SystemExit as ended:  # raised by the parser
        assert 1 == ended.code
    said = capsys.readouterr().err

    assert said.startswith("sparq report: ")
    assert sentence in said
    assert 1 == said.count("\n")
