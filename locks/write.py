"""Writes the lock files anew: `make lock`.

Every requirement is pinned with the hashes of all its files, for every platform and every
Python that sparq supports, and no file names a package index or any other host: who installs
from them uses the index that their own pip or npm is set to.

- build.txt       what builds packages (no build fetches anything unpinned)
- broker.txt      what nsqd, nsqlookupd and the client need: `pip install sparq-mq`
- spark.txt       that, and what the pipeline needs: the image of deploy/Dockerfile
- all.txt         that, the pipeline's Spark and the workshop: what `make` installs
- web             the script and style of nsqadmin's pages: `make vendor` copies them
- tests/scenarios/interop   for each foreign client its requirements-*.txt or */package-lock.json
- tests/scenarios/security  for each scanner its requirements-*.txt
- docs            what builds the site: `make site`
- proofs          what changes the code for `make mutants`

uv resolves, in an environment of its own under .venvs; pip alone installs.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCKS = ROOT / "locks"
BUILD = "setuptools>=77\nwheel\n"
OPTIONS = (
    *("--quiet", "--universal", "--python-version", "3.11", "--upgrade"),
    *("--generate-hashes", "--no-emit-index-url", "--no-annotate", "--no-header"),
)


def resolver() -> str:
    """The path of uv, installed first if need be."""
    home = ROOT / ".venvs" / "lock"
    if not (home / "bin" / "uv").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(home / "bin" / "pip"), "install", "--quiet", "uv"], check=True)
    return str(home / "bin" / "uv")


def compile_lock(uv: str, target: Path, *sources: str, requirements: str = "") -> None:
    """Resolve `sources` (or `requirements`, on standard input) into `target`."""
    command = [uv, "pip", "compile", *OPTIONS, *(sources or ("-",)), "--output-file", str(target)]
    subprocess.run(command, check=True, cwd=ROOT, input=requirements, text=True)
    print(f"{target.relative_to(ROOT)}: {target.read_text().count('==')} packages")


def lock_npm(home: Path) -> None:
    """The lock beside `home`'s package.json, without the addresses that npm writes for itself."""
    name = home.relative_to(ROOT) / "package-lock.json"
    if shutil.which("npm") is None:
        print(f"{name}: left as it is, needs npm")
        return
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copy(home / "package.json", scratch)
        command = ["npm", "install", "--package-lock-only"]
        subprocess.run([*command, "--no-audit", "--no-fund", "--silent"], check=True, cwd=scratch)
        lock = json.loads((Path(scratch) / "package-lock.json").read_text())
    for package in lock["packages"].values():
        for address in ("resolved", "funding"):
            package.pop(address, None)
    (ROOT / name).write_text(json.dumps(lock, indent=2) + "\n")
    print(f"{name}: {len(lock['packages']) - 1} packages")


def main() -> None:
    """All of them."""
    uv = resolver()
    compile_lock(uv, LOCKS / "build.txt", requirements=BUILD)
    compile_lock(uv, LOCKS / "broker.txt", "pyproject.toml")
    compile_lock(uv, LOCKS / "spark.txt", "pyproject.toml", "--extra=spark")
    extras = tuple(f"--extra={name}" for name in ("spark", "connect", "otel", "regex", "dev"))
    compile_lock(uv, LOCKS / "all.txt", "pyproject.toml", *extras)
    for source in sorted(
        source
        for folder in ("docs", "proofs", "tests")
        for source in ROOT.glob(f"{folder}/**/requirements-*.in")
    ):
        compile_lock(uv, source.with_suffix(".txt"), str(source))
    clients = sorted(ROOT.glob("tests/scenarios/interop/*/package.json"))
    for manifest in [*clients, LOCKS / "web" / "package.json"]:
        lock_npm(manifest.parent)


if __name__ == "__main__":
    main()
