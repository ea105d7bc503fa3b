"""Checks of `--master`: fail early if there is no master, before Spark tries for a minute.

1. `check_master` needs no Spark. It connects to the address, or looks for YARN's files.
2. `ask_master` asks a standalone master whether it is one, in Spark's own protocol and with the
   session's options for TLS and secrets. It needs the driver's JVM.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from sparq.pipeline.settings import SettingsError

STANDALONE: Final = "spark://"
KUBERNETES: Final = "k8s://"
YARN: Final = "yarn"
CONNECT_SECONDS: Final = 3.0
"""Time limit for a TCP connection to a master."""

ANSWER_SECONDS: Final = 4
"""Time limit for the answer of a standalone master, if the machine is not slow."""

HADOOP_FILES: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Variables that name the folder with Hadoop's files, which contain YARN's address."""

YARN_FILE: Final = "yarn-site.xml"
"""Without this file Spark would look for YARN on this machine for a quarter of an hour."""

PROXIES: Final = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
"""Variables for a proxy. If one is set, Spark may reach Kubernetes only through that proxy."""

ENDPOINT: Final = "Master"
"""The name of a standalone master's RPC endpoint."""

ANOTHER_PROTOCOL: Final = "Too large frame"
"""Spark's error if the peer speaks another protocol: it reads the first bytes as a length."""

NETWORK: Final = "org.apache.spark.network"
"""Spark's network classes, which log a stack trace for each failed connection."""


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


def ask_master(jvm: Any, master: str, answer_seconds: float = 0) -> None:
    """Check that a standalone master answers at one of the addresses or more.

    Args:
        jvm: the driver's JVM, as PySpark holds it.
        master: `--master`; if it is not standalone, nothing is checked.
        answer_seconds: seconds to wait for an answer; at least ANSWER_SECONDS are used.
    Raises:
        SettingsError: at no address does a standalone master answer and accept the request.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415 - only with PySpark

    addresses = _addresses(master) if master.startswith(STANDALONE) else []
    if not addresses:
        return
    log_level(jvm, NETWORK, "OFF")
    environment = _rpc_environment(jvm, max(ANSWER_SECONDS, round(answer_seconds)))
    reason = ""
    try:
        for host, port in addresses:
            address = getattr(jvm, "org.apache.spark.rpc.RpcAddress")(host, port)
            try:
                environment.setupEndpointRef(address, ENDPOINT)
                return
            except Py4JError as error:
                reason = java_reason(error)
    finally:
        environment.shutdown()
        log_level(jvm, NETWORK, "ERROR")  # the session's level for all of Spark
    if ANOTHER_PROTOCOL in reason:
        reason = "it speaks another protocol"
    raise SettingsError(f"--master={master} is not a Spark standalone master ({reason})")


def java_reason(error: Exception) -> str:
    """The first line of the root cause: the innermost Java exception, or else the Python error."""
    thrown: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while thrown is not None and thrown.getCause() is not None:
        thrown = thrown.getCause()
    text = str(thrown.toString()) if thrown is not None else str(error)
    return (text.strip() or type(error).__name__).splitlines()[0]


def log_level(jvm: Any, name: str, level: str) -> None:
    """Set the level of a logger in the JVM, such as OFF or ERROR."""
    log4j = "org.apache.logging.log4j"
    configurator = getattr(jvm, f"{log4j}.core.config.Configurator")
    configurator.setLevel(name, getattr(getattr(jvm, f"{log4j}.Level"), level))


def _rpc_environment(jvm: Any, seconds: int) -> Any:
    """Spark's RPC client, without a port of its own; an answer may take `seconds`."""
    conf: Any = getattr(jvm, "org.apache.spark.SparkConf")()
    conf.set("spark.rpc.lookupTimeout", f"{seconds}s")
    manager: Any = getattr(jvm, "org.apache.spark.SecurityManager")
    # The default values that Scala defines for the constructor's second and third arguments.
    second, third = (getattr(manager, f"$lessinit$greater$default${at}")() for at in (2, 3))
    create = getattr(jvm, "org.apache.spark.rpc.RpcEnv").create
    return create("sparq", "127.0.0.1", -1, conf, manager(conf, second, third), True)


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
