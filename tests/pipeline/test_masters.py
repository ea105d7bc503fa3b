"""The check of a master before the session starts: whether it answers, and what YARN needs."""

import socket
from pathlib import Path

import pytest

from sparq.pipeline.masters import HADOOP_FILES, PROXIES, check_master
from sparq.pipeline.settings import SettingsError


def test_an_unreachable_master_is_an_error() -> None:
    """An unreachable master is an error with its address and reason; one of two is enough."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_server(("127.0.0.1", 0)) as closed:
            free = closed.getsockname()[1]

        check_master(f"spark://127.0.0.1:{free},127.0.0.1:{port}")
        with pytest.raises(SettingsError, match="nothing answers there") as raised:
            check_master(f"spark://127.0.0.1:{free}")

    assert f"--master=spark://127.0.0.1:{free}: nothing answers there (Connection refused)" == str(
        raised.value
    )


def test_an_unreachable_kubernetes_api_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server of a Kubernetes master is checked, unless a proxy is configured."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_master(f"k8s://https://127.0.0.1:{port}")
    for master in (f"k8s://https://127.0.0.1:{port}", f"k8s://127.0.0.1:{port}/path"):
        with pytest.raises(SettingsError, match="nothing answers there"):
            check_master(master)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")

    check_master(f"k8s://https://127.0.0.1:{port}")


def test_other_masters_are_not_contacted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A local master needs no check; YARN needs HADOOP_CONF_DIR with yarn-site.xml."""
    for name in HADOOP_FILES:
        monkeypatch.delenv(name, raising=False)
    for master in ("", "local[*]"):
        check_master(master)
    with pytest.raises(SettingsError, match="--master=yarn: HADOOP_CONF_DIR is not set"):
        check_master("yarn")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(SettingsError) as raised:
        check_master("yarn")
    (tmp_path / "yarn-site.xml").touch()

    check_master("yarn")
    named = f"HADOOP_CONF_DIR={tmp_path}"
    assert f"--master=yarn: there is no yarn-site.xml in {named}" == str(raised.value)
