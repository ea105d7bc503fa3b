"""A check of the nsqlookupds and nsqds before any query starts, to report mistakes early.

1. Nothing is created, held or read: no topic, no channel, no message.
2. One nsqlookupd that answers is enough. An nsqd that is out of reach is no mistake, since the
   queries wait for it.
3. Whether nsqd refuses a channel is known only when a query asks for that channel.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from sparq.client.errors import SparqClientError
from sparq.pipeline.settings import Settings, SettingsError
from sparq.protocol.errors import RemoteError
from sparq.spark.connections import TopicConnections
from sparq.spark.errors import SparkNsqError
from sparq.spark.options import OptionError, SourceOptions

ANSWER_SECONDS: Final = 3.0
"""Time limit for the answer of an nsqlookupd."""

STARTING_SECONDS: Final = 30.0
"""The same limit if a supervisor starts the nsqlookupds at the same time."""

PAUSE_SECONDS: Final = 0.2
LOOKUPD: Final = "--lookupd-http-address"
UNAUTHORIZED: Final = "E_UNAUTHORIZED"
"""nsqd's code for a valid secret that does not allow this topic without a channel."""


def cluster_options(settings: Settings) -> dict[str, str]:
    """Options of source and sink: the nsqlookupds' addresses, and how to connect to the nsqds."""
    addresses = ",".join(settings.lookupd_http_addresses)
    return {"lookupd_http_addresses": addresses, **dict(settings.source)}


def check_cluster(settings: Settings) -> None:
    """Find the nsqds and connect to each.

    If the settings have a `run_dir`, a supervisor may still be starting nsqlookupd.

    Raises:
        SettingsError: no nsqlookupd answers, something else answers, or an nsqd does not accept
            the options for TLS and AUTH.
    """
    options = {"topic": settings.topic, "channel": "any", **cluster_options(settings)}
    fleet = TopicConnections(replace(_options(options), channel=""))
    limit_seconds = STARTING_SECONDS if settings.run_dir else ANSWER_SECONDS
    deadline = time.monotonic() + limit_seconds
    try:
        while not _has_answer(fleet):
            if time.monotonic() >= deadline:
                reasons = "; ".join(fleet.out_of_reach)
                raise SettingsError(f"{LOOKUPD}: no nsqlookupd answers ({reasons})")
            time.sleep(PAUSE_SECONDS)
    finally:
        fleet.close()


def _options(given: Mapping[str, str]) -> SourceOptions:
    try:
        return SourceOptions.of(given, stream=True)
    except OptionError as error:
        raise SettingsError(f"--source: {error}") from None


def _has_answer(fleet: TopicConnections) -> bool:
    """Whether an nsqlookupd has answered."""
    try:
        fleet.refresh()
    except RemoteError as refusal:
        if refusal.code != UNAUTHORIZED:
            raise SettingsError(f"--source: an nsqd refuses these options: {refusal}") from None
    except (SparqClientError, SparkNsqError) as error:
        flag = LOOKUPD if "nsqlookupd" in str(error) else "--source"
        raise SettingsError(f"{flag}: {error}") from None
    return fleet.give_up()
