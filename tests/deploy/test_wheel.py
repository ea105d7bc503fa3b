"""The wheel, installed where nothing else of sparq is: its programs, its extras, its types."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

from tests.deploy import wheel
from tests.interop.environments import INSTALL_SECONDS_MAX, Missing
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGES = {"sparq", "pyspark_nsq"}
HELP = """
import contextlib, importlib.metadata, io, json

found = {}
for entry in importlib.metadata.distribution("sparq").entry_points:
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = entry.load()(["--help"])
    except SystemExit as ended:
        status = ended.code
    found[entry.name] = status, said.getvalue()
print(json.dumps(found))
"""
"""What each program of the installed sparq says of itself, asked by one interpreter."""
USER = ROOT / "tests" / "typing" / "program.py"


pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS_MAX)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel."""
    return wheel.build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def programs(built: Path) -> Path:
    """The folder of the installed programs."""
    try:
        return wheel.install(built)
    except Missing as missing:
        pytest.skip(f"needs {missing}")


def run(*command: Path | str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program with nothing of this tree in its way."""
    words = [str(word) for word in command]
    return subprocess.run(
        words, cwd=folder, env={}, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_wheel_has_the_packages_whole_and_nothing_else(built: Path) -> None:
    """Every module of `src`, the type marker, and no test."""
    names = {name for name in zipfile.ZipFile(built).namelist() if ".dist-info/" not in name}
    source = built.parent / "source" / "src"
    modules = {str(path.relative_to(source)) for path in source.rglob("*.py")}

    assert names - {"sparq/py.typed"} == modules
    assert "sparq/py.typed" in names
    assert {name.partition("/")[0] for name in names} == PACKAGES


def test_the_extras_are_those_of_the_project(built: Path) -> None:
    """`sparq[spark]` and the others, each with what pyproject.toml lists."""
    with zipfile.ZipFile(built) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
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
    asked = run(programs / "python", "-c", HELP, folder=tmp_path)
    helps = json.loads(asked.stdout)

    assert names == sorted(helps)
    for name, (status, said) in helps.items():
        assert os.access(programs / name, os.X_OK), name
        assert 0 == status, said
        assert name in said


def test_what_needs_an_extra_names_it(programs: Path, tmp_path: Path) -> None:
    """The pipeline without Spark is an error that says what to install."""
    said = run(programs / "sparq", "run", folder=tmp_path)

    assert 2 == said.returncode
    assert "install sparq with its extra, `sparq[spark]`" in said.stderr


def test_types_are_found(programs: Path, tmp_path: Path) -> None:
    """mypy, strict, on a program that uses all of the API, with the installed package's types.

    Other packages are left out: their types are their own business, and take a while.
    """
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = True\n[mypy-aiohttp.*,numpy.*,uvloop.*]\nfollow_imports = skip\n"
    )
    mypy = [sys.executable, "-m", "mypy", "--no-error-summary"]
    mypy += ["--config-file", "mypy.ini", "--cache-dir", str(wheel.HOME / "mypy")]
    checked = run(*mypy, "--python-executable", programs / "python", USER, folder=tmp_path)

    assert (0, "") == (checked.returncode, checked.stdout + checked.stderr)


@pytest.fixture
def _nsqd(programs: Path, tmp_path: Path) -> Iterator[str]:
    """The installed nsqd, running; its TCP address."""
    tcp, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    flags = [f"--data-path={tmp_path}", f"--tcp-address={tcp}", f"--http-address={http}"]
    process = subprocess.Popen([str(programs / "nsqd"), *flags], stderr=subprocess.DEVNULL, env={})
    try:
        yield tcp
    finally:
        process.kill()
        process.wait()


def test_installed_programs_work_together(programs: Path, _nsqd: str, tmp_path: Path) -> None:
    """What is published with one of them, another one prints."""
    address = f"--nsqd-tcp-address={_nsqd}"
    sent = subprocess.run(
        [str(programs / "to_nsq"), "--topic=greetings", address],
        input=b"hello\n",
        cwd=tmp_path,
        timeout=60,
        check=False,
        capture_output=True,
    )
    got = run(
        *(programs / "nsq_tail", "--topic=greetings", "--channel=c", address, "-n=1"),
        folder=tmp_path,
    )

    assert (0, 0, "hello\n") == (sent.returncode, got.returncode, got.stdout), sent.stderr
