"""Run one nsqd once its sockets listen: recovery, TCP, HTTP, and the orderly stop.

It starts in NSQ's order (lock, node id, listeners, data) and stops as `Nsqd.stop` does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from sparq.broker.broker import Broker
from sparq.broker.catalog import CatalogError
from sparq.broker.health import ErrorNote
from sparq.broker.options import BrokerOptions
from sparq.broker.topics import Opening
from sparq.log.disk import DiskError, RealDisk
from sparq.migration.data_path_import import DataPathImport, GoImportError
from sparq.migration.topic_import import ImportStopped
from sparq.nsqd import main, policy_document
from sparq.nsqd.lookup_peers import LookupPeers
from sparq.nsqd.open_files import CachingDisk
from sparq.nsqd.options import TOPOLOGY, NsqdOptions, default_node_id
from sparq.nsqd.policy_document import DocumentError
from sparq.nsqd.reload import Reloader
from sparq.nsqd.server import Nsqd
from sparq.nsqd.statsd import Statsd
from sparq.nsqd.tcp import TcpConnection
from sparq.nsqd.turns import instant
from sparq.program import lifecycle
from sparq.protocol import SPARQ_VERSION
from sparq.protocol.instant import Instant

if TYPE_CHECKING:
    from sparq.daemon.http import Site
    from sparq.nsqd.main import EarlyResources


# 200 topics of 20 MB, read from the disk: 7.7 s with 4 threads, 8.3 s with 2, 8.4 s with 8 or 16.
OPENERS = 4
"""Threads that recover topics, when threads help."""
BATCH_TOPICS = 16
SLOW_SECONDS = 0.002
"""A topic slower than this spends more time on reading and waiting than on Python code."""


def run_all(openings: Sequence[Opening]) -> None:
    """Read the files of many topics; each opening keeps its own error.

    Reading small files is nearly all Python code, so threads only wait for the GIL: with 16
    threads, a start with 3,000 topics took three times as long. A few threads are faster for
    files with much data to check, or on a slow disk. So each batch of topics is timed, and that
    time decides how the next batch is read.
    """
    with ThreadPoolExecutor(OPENERS, "nsqd-open") as pool:
        slow = False
        for at in range(0, len(openings), BATCH_TOPICS):
            batch = openings[at : at + BATCH_TOPICS]
            began = time.perf_counter()
            # Consume the results: `map` is lazy, and `pool.map` does not wait for its threads.
            for _ in (pool.map if slow else map)(Opening.run, batch):
                pass
            slow = time.perf_counter() - began > SLOW_SECONDS * len(batch)


READING = ("open", "read", "list", "stat")
"""Disk operations that only read; see log/disk.py."""

logger = logging.getLogger(__name__)


def broker_options(options: NsqdOptions) -> BrokerOptions:
    """Return the broker's options, completed from the other groups of options."""
    return dataclasses.replace(
        options.broker,
        node_id=default_node_id(options) if options.node_id is None else options.node_id,
        auth_required=bool(options.auth.http_addresses or options.access.token_file),
        topology_aware=TOPOLOGY in options.enable_experiment,
        has_lookupd=bool(options.lookupd.tcp_addresses),
    )


def open_broker(options: NsqdOptions, disk: RealDisk, data_path: Path) -> Broker:
    """Recover the data path, and log what an operator should know about it.

    Raises:
        LoadError: the policies file cannot be used, or the data cannot be read or written.
    """
    now = instant()
    try:
        broker = Broker(
            broker_options(options),
            disk,
            str(data_path),
            now,
            server_facts={
                "sparq_version": SPARQ_VERSION,
                "tls": bool(options.tls.cert or options.tls.key),
                "topology_region": options.broker.topology_region,
                "topology_zone": options.broker.topology_zone,
            },
        )
        broker.configure_policies(policy_document.read_file(options.policies))
        for line in _load(broker, now):
            is_error = isinstance(line, ErrorNote)
            logger.log(logging.ERROR if is_error else logging.INFO, "%s", line)
    except DocumentError as error:
        raise lifecycle.LoadError(f"failed to load policies - {error}") from error
    except CatalogError as error:
        raise lifecycle.LoadError(f"failed to load metadata - {error}") from error
    except DiskError as error:
        what = "load" if error.operation in READING else "persist"
        raise lifecycle.LoadError(f"failed to {what} metadata - {error}") from error
    if options.node_id not in (None, broker.node_id):
        logger.warning(
            "the data path already has node id %d: --node-id=%d is ignored",
            broker.node_id,
            options.node_id,
        )
    return broker


def _load(broker: Broker, now: Instant) -> list[str]:
    """Recover the broker's topics; return messages for the operator.

    The loaded objects stay for the life of the process. The garbage collector would otherwise
    traverse millions of them repeatedly during loading, and in each full collection afterwards.
    """
    gc.disable()
    try:
        return list(broker.load(now, run_all))
    finally:
        gc.freeze()
        gc.enable()


async def take_over(
    options: NsqdOptions, disk: RealDisk, data_path: Path, stop: asyncio.Event
) -> bool:
    """Import data of Go's nsqd from the data path, if there is any; False: stopped meanwhile.

    Raises:
        StartError: the import failed; Go's files are unchanged.
    """
    data_path_import = DataPathImport(
        disk,
        str(data_path),
        node_id=broker_options(options).node_id,
        max_bytes_per_file=options.broker.max_bytes_per_file,
        clock=instant,
    )
    try:
        await asyncio.to_thread(data_path_import.run, stop.is_set)
    except ImportStopped:
        logger.info("NSQ: stopped during the import; the next start begins it again")
        return False
    except (GoImportError, CatalogError, DiskError) as error:
        raise lifecycle.LoadError(f"failed to load metadata - {error}") from error
    return True


def load_rarely_used() -> None:
    """Import what a library would import at the moment of need; blocking.

    nsqd serves clients already, so a module that cannot be opened now does not end it.
    """
    for name in main.RARELY_USED:
        try:
            lifecycle.load(name)
        except lifecycle.StartError as error:
            logger.warning("%s; it is loaded when it is needed", error)


async def serve(
    options: NsqdOptions,
    beginning: EarlyResources,
    read_again: Callable[[], NsqdOptions],
    stop: asyncio.Event,
) -> None:
    """Run one nsqd until the event is set.

    Args:
        options: the options from the command line and the configuration file.
        beginning: the locked data path and the listening sockets.
        read_again: reads the options again at SIGHUP.
        stop: the event that stops nsqd.
    Raises:
        StartError: nsqd cannot start.
    """
    data_path, share, held, certificates, listeners = beginning
    disk = CachingDisk(share.logs)
    disk.keep_to(held)
    if not await take_over(options, disk, data_path, stop):
        return
    broker = await asyncio.to_thread(open_broker, options, disk, data_path)
    nsqd = Nsqd(options, broker, asyncio.get_running_loop())
    nsqd.tls = certificates
    nsqd.connections_max = min(share.connections, options.tcp.max_connections or share.connections)
    nsqd.http_connections_max = share.http
    nsqd.tcp_port, nsqd.http_port, nsqd.https_port = (
        -1 if listener is None else listener.port for listener in listeners
    )
    peers = LookupPeers(nsqd)
    reloader = Reloader(nsqd, peers, read_again)
    if certificates is not None:
        reloader.load_certificates = certificates.load
    await listeners.tcp.serve(lambda: TcpConnection(nsqd))
    nsqd.turns.tick()
    logger.info("TCP: listening on %s", listeners.tcp.text)
    web = await asyncio.to_thread(lifecycle.load, "sparq.nsqd.http")
    site: Site = await web.start_http(nsqd, reloader, listeners)
    # Only now: nsqlookupd gives its clients both ports.
    await peers.start()
    # The modules stay, too; they are half of the objects that a full collection would traverse.
    gc.freeze()
    reports = Statsd(nsqd)
    reports.start()
    lifecycle.on_hangup(reloader.reload)
    # The module needs HTTP, as `site`, and is loaded by now.
    leave = lifecycle.load("sparq.nsqd.draining").ExitWhenDrained(nsqd, stop)
    await asyncio.to_thread(load_rarely_used)
    gc.freeze()
    await lifecycle.until_stopped(stop)
    logger.info("NSQ: stopping")
    for listener in listeners:
        if listener is not None:
            listener.close()
    await leave.stop()
    await reports.stop()
    # HTTP stops after the broker, so that publishes in progress are still answered.
    await nsqd.stop()
    await peers.stop()
    await site.stop()
    if nsqd.access is not None:
        await nsqd.access.close()
    # The lock goes last: until here another nsqd must not open the data path.
    held.close()
    logger.info("NSQ: bye")
