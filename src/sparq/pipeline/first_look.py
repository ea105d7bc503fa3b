"""A look at the nsqlookupds and nsqds before any query starts, so that a mistake is named at once.

1. Nothing is created, held or read: no topic, no channel, no message.
2. One nsqlookupd that answers is enough. An nsqd that is out of reach is no mistake, since the
   queries wait for it.
3. What nsqd refuses to a channel is not known before a query asks for that channel.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from sparq.client.errors import SparqClientError
from sparq.pipeline.settings import Settings, SettingsError
from sparq.protocol.errors import RemoteError
from sparq.spark.errors import SparkNsqError
from sparq.spark.fleet import Fleet
from sparq.spark.options import OptionError
from sparq.spark.source_options import SourceOptions

PATIENCE_SECONDS: Final = 3.0
"""How long nsqlookupds may take to answer."""

STARTING_SECONDS: Final = 30.0
"""The same, if a supervisor starts them at the same time."""

PAUSE_SECONDS: Final = 0.2
LOOKUPD: Final = "--lookupd-http-address"
UNAUTHORIZED: Final = "E_UNAUTHORIZED"
"""The secret is good, but not for this topic without a channel."""


def cluster_options(settings: Settings) -> dict[str, str]:
    """Options of source and sink: where the nsqds are, and how to speak with them."""
    addresses = ",".join(settings.lookupd_http_addresses)
    return {"lookupd_http_addresses": addresses, **dict(settings.source)}


def check_cluster(settings: Settings) -> None:
    """Find the nsqds and connect to each.

    Settings with a `run_dir` have a supervisor, which may be starting nsqlookupd.

    Raises:
        SettingsError: no nsqlookupd answers, something else answers, or an nsqd does not accept
            the options for TLS and AUTH.
    """
    options = {"topic": settings.topic, "channel": "any", **cluster_options(settings)}
    fleet = Fleet(replace(_options(options), channel=""))
    patience = STARTING_SECONDS if settings.run_dir else PATIENCE_SECONDS
    deadline = time.monotonic() + patience
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


def _has_answer(fleet: Fleet) -> bool:
    """Whether an nsqlookupd has answered."""
    try:
        fleet.refresh()
    except RemoteError as refusal:
        if refusal.code != UNAUTHORIZED:
            raise SettingsError(f"--source: an nsqd refuses its options: {refusal}") from None
    except (SparqClientError, SparkNsqError) as error:
        flag = LOOKUPD if "nsqlookupd" in str(error) else "--source"
        raise SettingsError(f"{flag}: {error}") from None
    return fleet.give_up()
