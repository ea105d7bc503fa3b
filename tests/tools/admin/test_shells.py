"""The scripts of `sparq admin completion` in real shells, with keys typed at a terminal."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparq.tools.admin.completion import SHELLS
from tests.tools.admin.conftest import Cluster
from tests.tools.admin.shells import Shell
from tests.tools.admin.test_completion import sparq_in

TYPED = {
    "sparq ad": "sparq admin ",
    "sparq admin": "sparq admin ",
    "sparq run ": "sparq run ",
    "sparq admin pau": "sparq admin pause ",
    "sparq admin pause cl": "sparq admin pause clicks ",
    "sparq admin pause clicks ": "sparq admin pause clicks archive ",
    "sparq admin pause clicks --dr": "sparq admin pause clicks --dry-run ",
    "sparq admin pause --dry-run cl": "sparq admin pause --dry-run clicks ",
    "sparq admin pause --token=x cl": "sparq admin pause --token=x clicks ",
    "sparq admin find --where='n = 3' cl": "sparq admin find --where='n = 3' clicks ",
    "sparq admin peek --lim": "sparq admin peek --limit=",
    "sparq admin peek clicks --state=de": "sparq admin peek clicks --state=deferred ",
    "sparq admin seek clicks archive last": "sparq admin seek clicks archive last:100 ",
    "sparq admin pause nothing-begins-so": "sparq admin pause nothing-begins-so",
    "sparq admin completion z": "sparq admin completion zsh ",
}


@pytest.fixture(params=SHELLS)
def name(request: pytest.FixtureRequest) -> str:
    """A shell that this machine has."""
    shell = str(request.param)
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    return shell


@pytest.fixture
def shell(cluster: Cluster, name: str, tmp_path: Path) -> Iterator[Shell]:
    """A shell whose environment names the cluster."""
    cluster.fresh("clicks", "archive", dead=False)
    environment = {**sparq_in(tmp_path), "SPARQ_LOOKUPD_HTTP_ADDRESS": cluster.lookupd.http}
    with Shell(name, tmp_path, environment) as found:
        yield found


def test_what_is_typed_is_completed(cluster: Cluster, shell: Shell) -> None:
    """Verbs, flags and their values, names of the cluster; a blank after what is whole."""
    assert TYPED == {typed: shell.completed(typed) for typed in TYPED}
    begin = f"sparq admin tombstone clicks {cluster.nsqds[0].http}"
    assert f"{begin} " == shell.completed(begin)


def test_the_cluster_that_the_flags_name(cluster: Cluster, name: str, tmp_path: Path) -> None:
    """An address has colons, where bash splits words: it is one word all the same."""
    cluster.fresh("clicks", "archive", dead=False)
    environment = sparq_in(tmp_path)
    assert "SPARQ_LOOKUPD_HTTP_ADDRESS" not in os.environ
    with Shell(name, tmp_path, environment) as shell:
        for flag in (cluster.flag, cluster.flag.replace("=", " ")):
            begin = f"sparq admin pause {flag}"
            assert f"{begin} clicks " == shell.completed(f"{begin} cl")
            assert f"{begin} clicks archive " == shell.completed(f"{begin} clicks a")
