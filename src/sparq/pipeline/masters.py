"""Checks of `--master`: that a master is there, before Spark tries for a minute to find one.

1. `check_master` needs no Spark. It connects to an address, and looks for YARN's files.
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
"""The time that a master has to accept a connection."""

ANSWER_SECONDS: Final = 4
"""The time that a standalone master has to say that it is one, on a machine that is not slow."""

HADOOP_FILES: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Variables that name the folder with YARN's address."""

YARN_FILE: Final = "yarn-site.xml"
"""Without it Spark would try for a quarter of an hour to find YARN on this machine."""

PROXIES: Final = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
"""Variables with which Spark may reach Kubernetes through another machine."""

ENDPOINT: Final = "Master"
"""The name under which a standalone master takes messages."""

ANOTHER_PROTOCOL: Final = "Too large frame"
"""Spark takes the first bytes of an answer for its length."""

NETWORK: Final = "org.apache.spark.network"
"""Its log has a stack trace for each connection that fails."""


def check_master(master: str) -> None:
    """Check that a master accepts connections, at one of its addresses at least.

    Spark itself would try for a minute before it gives up. YARN's address is in Hadoop's files.

    Raises:
        SettingsError: no address accepts a connection, or YARN's files are not there.
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


def ask_master(jvm: Any, master: str, patience: float = 0) -> None:
    """Check that one address of a standalone master, at least, is that of a master.

    Args:
        jvm: the driver's JVM, as PySpark has it.
        master: `--master`; one that is not standalone is not asked.
        patience: seconds to wait for an answer, where they are more than ANSWER_SECONDS.
    Raises:
        SettingsError: none is: something else answers there, or nothing does, or it refuses.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415 - only with PySpark

    addresses = _addresses(master) if master.startswith(STANDALONE) else []
    if not addresses:
        return
    log_level(jvm, NETWORK, "OFF")
    environment = _rpc_environment(jvm, max(ANSWER_SECONDS, round(patience)))
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
        log_level(jvm, NETWORK, "ERROR")  # as the session has it for all of Spark
    if ANOTHER_PROTOCOL in reason:
        reason = "it speaks another protocol"
    raise SettingsError(
        f"--master={master}: what listens there is no standalone master of Spark ({reason})"
    )


def java_reason(error: Exception) -> str:
    """The first line of the Java exception that caused all others, or else of the Python one."""
    thrown: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while thrown is not None and thrown.getCause() is not None:
        thrown = thrown.getCause()
    text = str(thrown.toString()) if thrown is not None else str(error)
    return (text.strip() or type(error).__name__).splitlines()[0]


def log_level(jvm: Any, name: str, level: str) -> None:
    """Set what a logger of the JVM writes, such as OFF or ERROR."""
    log4j = "org.apache.logging.log4j"
    configurator = getattr(jvm, f"{log4j}.core.config.Configurator")
    configurator.setLevel(name, getattr(getattr(jvm, f"{log4j}.Level"), level))


def _rpc_environment(jvm: Any, seconds: int) -> Any:
    """What Spark sends messages with, without a port of its own; an answer may take `seconds`."""
    conf: Any = getattr(jvm, "org.apache.spark.SparkConf")()
    conf.set("spark.rpc.lookupTimeout", f"{seconds}s")
    manager: Any = getattr(jvm, "org.apache.spark.SecurityManager")
    # Scala's default values of its second and third argument.
    second, third = (getattr(manager, f"$lessinit$greater$default${at}")() for at in (2, 3))
    create = getattr(jvm, "org.apache.spark.rpc.RpcEnv").create
    return create("sparq", "127.0.0.1", -1, conf, manager(conf, second, third), True)


def _addresses(master: str) -> list[tuple[str, int]]:
    """Where a standalone master or Kubernetes listens; none for others."""
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
            raise SettingsError(f"--master={master} has a port that is none") from None
        found.append((place.hostname or "", port or (80 if place.scheme == "http" else 443)))
    return found
