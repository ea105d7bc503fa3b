"""The wheel, installed where nothing else of sparq is: its programs, its extras, its types."""

from __future__ import annotations

import json
import os
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.scenarios.deploy import pins, wheel
from tests.scenarios.interop.environments import INSTALL_SECONDS_MAX, Missing

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGES = {"sparq", "pyspark_nsq"}
ASKED = """
import contextlib, importlib.metadata, io, json

def asked(entry, flag):
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = entry.load()([flag])
    except SystemExit as ended:
        status = ended.code
    return status, said.getvalue()

entries = importlib.metadata.distribution("sparq-mq").entry_points
flags = "--help", "--version"
print(json.dumps({entry.name: [asked(entry, flag) for flag in flags] for entry in entries}))
"""
"""What each program of the installed sparq says of itself, asked by one interpreter."""
USER = ROOT / "tests" / "scenarios" / "typing" / "program.py"


pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS_MAX)


@pytest.fixture(scope="module")
def programs(built: Path) -> Path:
    """The folder of the installed programs."""
    try:
        return wheel.install(built)
    except Missing as missing:
        pytest.skip(f"needs {missing}")


def test_the_wheel_has_the_packages_whole_and_nothing_else(built: Path) -> None:
    """Every module of `src`, the type marker, what pages are made of, and no test."""
    names = {name for name in zipfile.ZipFile(built).namelist() if ".dist-info/" not in name}
    source = built.parent / "source" / "src"
    modules = {str(path.relative_to(source)) for path in source.rglob("*.py")}
    pages = {
        str(path.relative_to(source))
        for folder in ("nsqadmin/templates", "nsqadmin/static", "pipeline/report_page")
        for path in (source / "sparq" / folder).rglob("*")
        if path.is_file()
    }

    assert modules | pages | {"sparq/py.typed"} == names
    assert {"sparq/nsqadmin/templates/base.html", "sparq/nsqadmin/static/app.css"} <= pages
    assert {name.partition("/")[0] for name in names} == PACKAGES


def test_the_extras_are_those_of_the_project(built: Path) -> None:
    """`sparq-mq[spark]` and the others, each with what pyproject.toml lists."""
    metadata = pins.metadata(built)
    needed = [str(line) for line in metadata.get_all("Requires-Dist", [])]
    extras = PROJECT["optional-dependencies"]

    assert sorted(extras) == sorted(metadata.get_all("Provides-Extra", []))
    assert {"spark", "otel"} <= set(extras)
    for extra, wanted in extras.items():
        assert len(wanted) == sum(f'extra == "{extra}"' in line for line in needed), extra
    assert len(PROJECT["dependencies"]) == sum("extra ==" not in line for line in needed)


def test_every_program_starts(programs: Path, tmp_path: Path) -> None:
    """Each console script is there, and finds all that it imports without any extra."""
    names = sorted(PROJECT["scripts"])
    asked = wheel.run(programs / "python", "-c", ASKED, folder=tmp_path)
    told = json.loads(asked.stdout)

    assert names == sorted(told)
    for name, ((help_status, said), (version_status, version)) in told.items():
        assert os.access(programs / name, os.X_OK), name
        assert (0, 0) == (help_status, version_status), said + version
        assert name in said
        assert version.startswith(f"{name} v")
        assert f" sparq {PROJECT['version']}" in " ".join(version.split())


def test_what_needs_an_extra_names_it(programs: Path, tmp_path: Path) -> None:
    """The pipeline without Spark, and spans without OpenTelemetry, say what to install."""
    pipelines = [wheel.run(programs / "sparq", word, folder=tmp_path) for word in ("run", "up")]
    line = "import sparq.client.telemetry"
    spans = wheel.run(programs / "python", "-c", line, folder=tmp_path)

    for pipeline in pipelines:
        assert 1 == pipeline.returncode
        assert "pip install 'sparq-mq[spark]'" in pipeline.stderr
    assert 1 == spans.returncode
    assert "needs OpenTelemetry: pip install 'sparq-mq[otel]'" in spans.stderr


def test_types_are_found(programs: Path, tmp_path: Path) -> None:
    """mypy, strict, on a program that uses all of the API, with the installed package's types.

    Other packages are left out: their types are their own business, and take a while.
    """
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = True\n[mypy-aiohttp.*,numpy.*,uvloop.*]\nfollow_imports = skip\n"
    )
    mypy = [sys.executable, "-m", "mypy", "--no-error-summary"]
    mypy += ["--config-file", "mypy.ini", "--cache-dir", str(wheel.HOME / "mypy")]
    checked = wheel.run(*mypy, "--python-executable", programs / "python", USER, folder=tmp_path)

    assert (0, "") == (checked.returncode, checked.stdout + checked.stderr)


def test_installed_programs_work_together(programs: Path, tmp_path: Path) -> None:
    """What is published with one of them, another one prints."""
    with wheel.nsqd(programs, tmp_path) as nsqd:
        address = f"--nsqd-tcp-address={nsqd.tcp}"
        to_nsq = (programs / "to_nsq", "--topic=greetings", address)
        sent = wheel.run(*to_nsq, folder=tmp_path, given="hello\n")
        nsq_tail = (programs / "nsq_tail", "--topic=greetings", "--channel=c", address, "-n=1")
        got = wheel.run(*nsq_tail, folder=tmp_path)

    assert (0, 0, "hello\n") == (sent.returncode, got.returncode, got.stdout), sent.stderr
