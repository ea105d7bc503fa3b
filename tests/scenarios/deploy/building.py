"""Runs the steps of deploy/Dockerfile without a container engine, over this machine's file system.

1. Each stage is an overlay over / or, if it starts from another stage, over that one's, in a mount
   namespace that ends with the test: steps run unchanged, as root, and change nothing outside.
2. This machine with its Python takes the place of the base image: `python` and `pip` run its own.
   So the steps are tested, but not Debian's packages; the image's size is that of its own files.
3. pip uses packages that were downloaded once (.venvs/image), so it needs no index.
4. A program of the image runs as in a container: as the first process, as the stage's user, with
   no capabilities, a separate network, and a file system that is read-only except for volumes.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.scenarios.deploy import dockerfile
from tests.scenarios.deploy.namespace import Namespace
from tests.scenarios.deploy.wheel import INDEX
from tests.scenarios.interop.environments import ENVIRONMENTS, ROOT, Missing, attempt

LOCKS = ("build", "broker")
FETCHED = ENVIRONMENTS / "image"
LEFT_OUT = ("__pycache__", "*.egg-info")
"""What deploy/Dockerfile.dockerignore excludes from folders copied from the checkout."""
SECONDS_MAX = 240
SETUP = """
mount -t tmpfs tmpfs "$1"
ip link set lo up
"""
STAGE = """
cd "$1"
mkdir "$2" "$2/upper" "$2/work" "$2/merged"
mount -t overlay overlay -o "lowerdir=$3,upperdir=$2/upper,workdir=$2/work" "$2/merged"
mount --bind /dev "$2/merged/dev"
mount -t proc proc "$2/merged/proc"
"""
CONTAINER = """
root="$1" user="$2" path="$3"
shift 3
while [ "$1" != -- ]; do mount --bind "$1" "$root$2"; shift 2; done
shift
mount -t proc proc "$root/proc"
mount -o remount,bind,ro "$root"
exec chroot "$root" setpriv "--reuid=$user" "--regid=$user" --clear-groups --no-new-privs \\
    --bounding-set=-all --inh-caps=-all --pdeathsig=KILL \\
    env -i -C /tmp HOME=/tmp "PATH=$path" "$@"
"""
BASE = "/base"
BASE_PATH = f"{BASE}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@functools.cache
def fetched_packages() -> Path:
    """A folder with all packages in the locks of the slim image.

    Raises:
        Missing: it does not exist, and no index can be reached.
    """
    wanted = "".join((ROOT / "locks" / f"{name}.txt").read_text() for name in LOCKS)
    stamp = FETCHED / "locks.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(FETCHED, ignore_errors=True)
        FETCHED.mkdir(parents=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download"]
        for name in LOCKS:
            lock = ROOT / "locks" / f"{name}.txt"
            words = ["--no-deps", "--require-hashes", "-r", str(lock), "--dest", str(FETCHED)]
            attempt("image", INDEX, [*pip, *words])
        stamp.write_text(wanted)
    return FETCHED


class Stages:
    """The stages of a target, built: `seen` returns the path of a stage's files for the test."""

    def __init__(self, target: str, folder: Path) -> None:
        packages = fetched_packages().as_uri()
        self._pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": packages, "PIP_CONFIG_FILE": os.devnull}
        self._place = folder
        self._stages = dockerfile.stages()
        self._space = Namespace("mn", SETUP, str(folder))
        self._uppers: dict[str, str] = {}
        self.variables: dict[str, dict[str, str]] = {}
        self._folders: dict[str, str] = {}
        try:
            for name in dockerfile.needed(target):
                self._build(name)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the namespace, which removes everything."""
        self._space.close()

    def merged(self, stage: str) -> Path:
        """The root of a stage within the namespace."""
        return self._place / stage / "merged"

    def seen(self, stage: str) -> Path:
        """The root of a stage as the test sees it."""
        return Path(f"/proc/{self._space.pid}/root{self.merged(stage)}")

    def _build(self, name: str) -> None:
        stage = self._stages[name]
        below = self._uppers.get(stage.origin, "")
        lower = f"{self._place / below / 'upper'}:/" if below else "/"
        made = self._run_inside("sh", "-ec", STAGE, "sh", str(self._place), name, lower)
        if made.returncode:
            raise Missing(f"overlays of the root file system: {made.stderr.strip()}")
        self._uppers[name] = name
        self.variables[name] = dict(self.variables.get(stage.origin, {"PATH": BASE_PATH}))
        self._folders[name] = "/"
        if not below:
            self._make_base(name)
        for instruction, words in stage.steps:
            step = getattr(self, f"_step_{instruction.lower()}", None)
            if step is not None:
                step(name, words)

    def _make_base(self, name: str) -> None:
        """Add `python` and `pip` of this machine, executable by every user."""
        root = self.seen(name)
        python = os.path.realpath(sys.executable)
        if not (root / python.lstrip("/")).exists() or not (root / str(ROOT).lstrip("/")).exists():
            raise Missing("Python and this tree on the root file system")
        programs = root / BASE.lstrip("/")
        programs.mkdir()
        for program, words in (("python", f'"{python}"'), ("pip", f'"{sys.executable}" -m pip')):
            (programs / program).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            (programs / program).chmod(0o755)
        for folder in Path(python).parents:
            inside = root / str(folder).lstrip("/")
            inside.chmod(inside.stat().st_mode | 0o055)

    def _step_env(self, name: str, words: str) -> None:
        known = self.variables[name]
        for key, value in re.findall(r"(\w+)=(\S+)", words):
            known[key] = value.replace("${PATH}", known["PATH"])

    def _step_workdir(self, name: str, words: str) -> None:
        self._folders[name] = words
        (self.seen(name) / words.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def _step_run(self, name: str, words: str) -> None:
        command = re.sub(r"--mount=\S+ ", "", words)
        variables = {**self.variables[name], **self._pip, "HOME": "/root"}
        inside = ("chroot", str(self.merged(name)), "env", "-i", "-C", self._folders[name])
        given = [f"{key}={value}" for key, value in variables.items()]
        ran = self._run_inside(*inside, *given, "/bin/sh", "-c", command)
        assert ran.returncode == 0, (command, ran.stdout + ran.stderr)

    def _step_copy(self, name: str, words: str) -> None:
        flags = dict(re.findall(r"--(\w+)=(\S+)", words))
        *sources, target = [word for word in words.split() if not word.startswith("--")]
        origin = self.seen(flags["from"]) if "from" in flags else ROOT
        place = self.seen(name) / Path(self._folders[name], target).relative_to("/")
        for source in sources:
            copied = origin / source.strip("/")
            into = place if copied.is_dir() or not target.endswith("/") else place / copied.name
            left_out = () if "from" in flags else LEFT_OUT
            copy(copied, into, int(flags.get("chmod", "0"), 8), left_out)

    def _run_inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._space.prefix, *command],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )

    def container(self, stage: str, log: Path, *command: str, **volumes: Path) -> Container:
        """Start a program of a stage, as an engine does.

        Volumes are named as in /var/lib; `data` is /data.
        """
        places = {name: "/data" if name == "data" else f"/var/lib/{name}" for name in volumes}
        mounts = [str(word) for name, at in volumes.items() for word in (at, places[name])]
        settings = [str(self.merged(stage)), self.user(stage), self.variables[stage]["PATH"]]
        run = ["unshare", "-m", "-p", "--fork", "--kill-child", "sh", "-ec", CONTAINER, "sh"]
        return Container([*self._space.prefix, *run, *settings, *mounts, "--"], command, log)

    def user(self, stage: str) -> str:
        """The number of the user (and of the group) that runs a stage's programs."""
        (words,) = self._stages[stage].of("USER")
        user, _, group = words.partition(":")
        assert user == group
        return user


class Container:
    """A program that runs as the first process of its namespace.

    Attributes:
        process: its parent, which ends when it does.
    """

    def __init__(self, prefix: list[str], command: Sequence[str], log: Path) -> None:
        self._prefix = prefix
        self._log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen([*prefix, *command], stdout=file, stderr=file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Kill the first process itself: if it survived, it would answer the next health check. The
        # signal of `unshare --kill-child` does not reach it, as a change of the user resets it.
        try:
            os.kill(self.first, signal.SIGKILL)
        except (ValueError, OSError):  # it has ended, or has not started yet
            self.process.kill()
        self.process.wait(SECONDS_MAX)

    def exec(self, *command: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run another program of the image next to it."""
        return subprocess.run(
            [*self._prefix, *command],
            input=given,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )

    @property
    def log_text(self) -> str:
        """The program's log."""
        return self._log.read_text()

    @property
    def first(self) -> int:
        """The process id of the first process."""
        parent = self.process.pid
        (child,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return int(child)

    def stop(self, signal_number: int, seconds: float) -> int:
        """Send a signal to the program; returns its exit status."""
        os.kill(self.first, signal_number)
        return self.process.wait(seconds)


def copy(source: Path, place: Path, mode: int, left_out: Sequence[str]) -> None:
    """Copy one file, or the contents of a folder, as COPY does."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        hidden = shutil.ignore_patterns(*left_out)
        shutil.copytree(source, place, symlinks=True, ignore=hidden, dirs_exist_ok=True)
    else:
        shutil.copy(source, place)
    if mode:
        place.chmod(mode)
