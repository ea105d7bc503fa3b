"""The check of `--master`: fail early if there is none, before Spark tries for a minute.

It needs no Spark: it connects to the address, or looks for YARN's files.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sparq.pipeline.settings import SettingsError

STANDALONE: Final = "spark://"
KUBERNETES: Final = "k8s://"
YARN: Final = "yarn"
CONNECT_SECONDS: Final = 3.0
"""Time limit for a TCP connection to a master."""

HADOOP_FILES: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Variables that name the folder with Hadoop's files, which contain YARN's address."""

YARN_FILE: Final = "yarn-site.xml"
"""Without this file Spark would look for YARN on this machine for a quarter of an hour."""

PROXIES: Final = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
"""Variables for a proxy. If one is set, Spark may reach Kubernetes only through that proxy."""


def check_master(master: str) -> None:
    """Check that a master accepts connections at one of its addresses or more.

    Spark itself would try for a minute before it gives up. For YARN, check Hadoop's files instead.

    Raises:
        SettingsError: no address accepts a connection, or YARN's files are missing.
    """
    if master == YARN:
        _check_yarns_files()
    reason = ""
    for host, port in _addresses(master):
        try:
            socket.create_connection((host, port), CONNECT_SECONDS).close()
            return
        except (OSError, OverflowError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
    if reason:
        raise SettingsError(f"--master={master}: nothing answers there ({reason})")


def _check_yarns_files() -> None:
    folders = {name: folder for name in HADOOP_FILES if (folder := os.environ.get(name))}
    if not folders:
        raise SettingsError(
            f"--master=yarn: HADOOP_CONF_DIR is not set: set it to the folder of {YARN_FILE}"
        )
    if not any(Path(folder, YARN_FILE).is_file() for folder in folders.values()):
        named = " and ".join(f"{name}={folder}" for name, folder in folders.items())
        raise SettingsError(f"--master=yarn: there is no {YARN_FILE} in {named}")


def _addresses(master: str) -> list[tuple[str, int]]:
    """Addresses of a standalone master or of Kubernetes; an empty list for other masters."""
    if master.startswith(STANDALONE):
        places = [f"//{one}" for one in master.removeprefix(STANDALONE).split(",")]
    elif master.startswith(KUBERNETES) and not any(map(os.environ.get, PROXIES)):
        bare = master.removeprefix(KUBERNETES)
        places = [bare if "://" in bare else f"https://{bare}"]
    else:
        return []
    found = []
    for place in map(urlsplit, places):
        try:
            port = place.port
        except ValueError:
            raise SettingsError(f"--master={master} has an invalid port: use 1-65535") from None
        found.append((place.hostname or "", port or (80 if place.scheme == "http" else 443)))
    return found
