"""Copies the foreign script and style of nsqadmin's pages to where they are shipped: `make vendor`.

For developers only: what is copied is committed and goes into the wheel, so that users need
neither Node nor a network. npm checks each package against its sha512 in package-lock.json and
runs no script of a package; `static/vendor/list.json` says what each file is, where it came from
and what its sha256 is, and a test recomputes the sums.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HOME = Path(__file__).parent
TARGET = HOME.parents[1] / "src" / "sparq" / "nsqadmin" / "static" / "vendor"
FILES = {
    "htmx.org": {
        "dist/htmx.min.js": "htmx.min.js",
        "dist/ext/hx-sse.min.js": "hx-sse.min.js",
        "LICENSE": "htmx.LICENSE.txt",
    },
    "uplot": {
        "dist/uPlot.iife.min.js": "uplot.min.js",
        "dist/uPlot.min.css": "uplot.min.css",
        "LICENSE": "uplot.LICENSE.txt",
    },
}
"""Of each package: a file of it, and what it is called here."""


def install(folder: Path, *flags: str) -> Path:
    """Fetch the locked packages into a folder; returns its node_modules.

    Raises:
        subprocess.CalledProcessError: npm could not, or a sum differs.
    """
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HOME / name, folder)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent", *flags]
    subprocess.run(command, check=True, cwd=folder)
    return folder / "node_modules"


def copy(modules: Path) -> list[dict[str, object]]:
    """Copy the files; returns what list.json says of each package."""
    lock = json.loads((HOME / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    packages = []
    for package, files in FILES.items():
        locked = lock[f"node_modules/{package}"]
        sums = {}
        for source, name in files.items():
            content = (modules / package / source).read_bytes()
            (TARGET / name).write_bytes(content)
            sums[name] = hashlib.sha256(content).hexdigest()
        packages.append(
            {
                "name": package,
                "version": locked["version"],
                "license": locked["license"],
                "npm_integrity": locked["integrity"],
                "sha256": sums,
            }
        )
    return packages


def main() -> None:
    """Copy all, and write the list."""
    if shutil.which("npm") is None:
        sys.exit("needs npm (of Node.js 20 or newer)")
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        packages = copy(install(Path(scratch), "--omit=dev"))
    (TARGET / "list.json").write_text(json.dumps(packages, indent=2) + "\n", encoding="utf-8")
    for package in packages:
        print(f"{package['name']} {package['version']} ({package['license']})")


if __name__ == "__main__":
    main()
