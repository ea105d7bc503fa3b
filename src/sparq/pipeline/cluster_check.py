"""A check of the nsqlookupds and nsqds before any query starts, to report mistakes early.

Nothing is created, held or read. One nsqlookupd that answers is enough; an nsqd that is out of
reach is no mistake, since the queries wait for it.
"""

from __future__ import annotations

import time
from typing import Final

from sparq.client.errors import SparqClientError
from sparq.pipeline.settings import Settings, SettingsError, cluster_options
from sparq.protocol.errors import RemoteError
from sparq.spark.connections import TopicConnections
from sparq.spark.errors import SparkNsqError
from sparq.spark.options import SourceOptions

ANSWER_SECONDS: Final = 3.0
"""Time limit for the answer of an nsqlookupd."""

STARTING_SECONDS: Final = 30.0
"""The same limit if a supervisor, for which `run_dir` is, starts the nsqlookupds just now."""


def check_cluster(settings: Settings) -> None:
    """Find the nsqds and connect to each.

    Raises SettingsError: no nsqlookupd answers, something else answers, or an nsqd does not accept
    the options for TLS and AUTH.
    """
    # No channel: whether nsqd refuses it is known only when a query asks for it.
    given = {**cluster_options(settings), "topic": settings.topic}
    fleet = TopicConnections(SourceOptions.of(given, stream=None))
    deadline = time.monotonic() + (STARTING_SECONDS if settings.run_dir else ANSWER_SECONDS)
    try:
        fleet.refresh()
        while not fleet.give_up():  # until an nsqlookupd has answered
            if time.monotonic() >= deadline:
                reasons = "; ".join(fleet.out_of_reach)
                raise SettingsError(f"--lookupd-http-address: no nsqlookupd answers ({reasons})")
            time.sleep(0.2)
            fleet.refresh()
    except RemoteError as refusal:
        # A valid secret may not allow this topic without a channel.
        if refusal.code != "E_UNAUTHORIZED":
            raise SettingsError(f"--source: an nsqd refuses these options: {refusal}") from None
    except (SparqClientError, SparkNsqError) as error:
        flag = "--lookupd-http-address" if "nsqlookupd" in str(error) else "--source"
        raise SettingsError(f"{flag}: {error}") from None
    finally:
        fleet.close()
