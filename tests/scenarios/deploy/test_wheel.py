"""The wheel, installed in an environment without this checkout: programs, extras and types."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.scenarios.deploy import wheel
from tests.scenarios.interop.environments import INSTALL_SECONDS_MAX, Missing

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGES = {"sparq", "pyspark_nsq"}
OF_OTHERS = {"markupsafe": "jinja2", "multidict": "aiohttp", "yarl": "aiohttp", "py4j": "pyspark"}
"""Modules that belong to the interface of a dependency, which brings them."""
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
"""Asks each installed program for its help and its version, in one interpreter."""
USER = ROOT / "tests" / "scenarios" / "typing" / "program.py"


pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS_MAX)


@pytest.fixture(scope="module")
def programs(built: Path) -> Path:
    """The folder of the installed programs."""
    try:
        return wheel.install(built)
    except Missing as missing:
        pytest.skip(f"needs {missing}")


def test_the_wheel_has_all_modules_and_no_tests(built: Path) -> None:
    """The wheel has every module of `src`, the pages' files, the rules, and no tests."""
    names = {name for name in zipfile.ZipFile(built).namelist() if ".dist-info/" not in name}
    source = built.parent / "source" / "src"
    modules = {str(path.relative_to(source)) for path in source.rglob("*.py")}
    pages = {
        str(path.relative_to(source))
        for folder in ("nsqadmin/templates", "nsqadmin/static", "pipeline/report")
        for path in (source / "sparq" / folder).rglob("*")
        if path.is_file()
    }

    others = {
        "sparq/py.typed",
        "sparq/pipeline/run/up.txt",
        "sparq/pipeline/sessions/rules.toml",
    }
    assert modules | pages | others == names
    assert {"sparq/nsqadmin/templates/base.html", "sparq/nsqadmin/static/app.css"} <= pages
    assert {name.partition("/")[0] for name in names} == PACKAGES


def test_every_import_is_a_declared_dependency() -> None:
    """Modules outside sparq belong to a dependency of the wheel or of one of its extras."""
    extras = PROJECT["optional-dependencies"].values()
    declared = [line for lines in (PROJECT["dependencies"], *extras) for line in lines]
    names = {canonicalize_name(re.split(r"[^\w.-]", line)[0]) for line in declared}
    owners = packages_distributions()
    imported: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {one.name.partition(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(str(node.module).partition(".")[0])

    for module in sorted(imported - sys.stdlib_module_names - PACKAGES):
        found = [OF_OTHERS[module]] if module in OF_OTHERS else owners.get(module, [])
        assert names & {canonicalize_name(owner) for owner in found}, module


def test_every_program_starts(programs: Path, tmp_path: Path) -> None:
    """Each console script exists and starts, without any extra."""
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


def test_the_installed_types_are_found(programs: Path, tmp_path: Path) -> None:
    """mypy --strict accepts a program that uses the whole API, with the installed types.

    Other packages are left out: their types do not matter here, and take time.
    """
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = True\n[mypy-aiohttp.*,numpy.*,uvloop.*]\nfollow_imports = skip\n"
    )
    mypy = [sys.executable, "-m", "mypy", "--no-error-summary"]
    mypy += ["--config-file", "mypy.ini", "--cache-dir", str(wheel.HOME / "mypy")]
    checked = wheel.run(*mypy, "--python-executable", programs / "python", USER, folder=tmp_path)

    assert (0, "") == (checked.returncode, checked.stdout + checked.stderr)
