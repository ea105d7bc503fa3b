"""Each alert of deploy/prometheus/nsq.rules.yml fires for real causes, and stops when they end.

The tests use real daemons and a real Prometheus, in whose rules a minute lasts a second (see
`alerting`). All troubles exist at the same time: they share the cluster, but not their topics.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.scenarios.deploy import alerting
from tests.scenarios.deploy.troubles import TROUBLES, Cluster, missing_for_strace
from tests.support.waiting import wait_for

SECONDS_MAX = 240
POLL_SECONDS = 0.2
MEANT = sorted(set[str]().union(*TROUBLES.values()))

pytestmark = pytest.mark.timeout(4 * SECONDS_MAX)


@dataclass(frozen=True)
class Observations:
    """What Prometheus has reported.

    Attributes:
        before: the alerts that fired before the troubles.
        annotations: of the alerts seen firing during the troubles.
        fired: all alerts that have fired by the end of the troubles.
        after: the alerts that still fire after they have had time to stop.
        mixin: the number of samples of each recorded name of the mixin.
    """

    before: set[str]
    annotations: dict[str, dict[str, str]]
    fired: set[str]
    after: set[str]
    mixin: dict[str, int]


@pytest.fixture(scope="module")
def observations(tmp_path_factory: pytest.TempPathFactory) -> Observations:
    """Start all troubles in a healthy cluster, and end them."""
    alerting.program("prometheus")
    if lack := missing_for_strace():
        pytest.skip(lack)
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        return run_troubles(cluster)


def run_troubles(cluster: Cluster) -> Observations:
    """Run the troubles in a cluster; returns what Prometheus reported."""
    prometheus = cluster.prometheus
    wait_for(lambda: len(prometheus.ask("up == 1")) == 8, SECONDS_MAX, every=POLL_SECONDS)
    before = prometheus.has_fired()
    annotations: dict[str, dict[str, str]] = {}
    missing: set[str] = set(MEANT)

    def all_fire() -> bool:
        annotations.update(prometheus.firing())
        missing.difference_update(annotations, prometheus.has_fired())
        return not missing

    with ExitStack() as troubles:
        for trouble in TROUBLES:
            troubles.enter_context(trouble(cluster))
        wait_for(all_fire, SECONDS_MAX, lambda: sorted(missing), POLL_SECONDS)
        mixin = {
            name: len(prometheus.ask(name)) for name in alerting.names("record", alerting.MIXIN)
        }
    fired = prometheus.has_fired()
    wait_for(lambda: not prometheus.firing(), SECONDS_MAX, prometheus.firing, POLL_SECONDS)
    return Observations(before, annotations, fired, set(prometheus.firing()), mixin)


def test_every_alert_has_a_trouble() -> None:
    """Every alert has a trouble that makes it fire."""
    assert MEANT == sorted(alerting.names("alert", alerting.ALERTS))


def test_a_healthy_cluster_has_no_alerts(observations: Observations) -> None:
    """No alert fires in a healthy cluster."""
    assert set() == observations.before


@pytest.mark.parametrize("alert", MEANT)
def test_an_alert_fires_and_stops(alert: str, observations: Observations) -> None:
    """An alert fires during its trouble with complete annotations, and stops afterwards."""
    said = "".join(observations.annotations.get(alert, {}).values())

    assert alert in observations.fired
    assert alert not in observations.after
    assert "<" not in said  # a failed template contains "<"


def test_every_rule_of_the_mixin_has_samples(observations: Observations) -> None:
    """Each recording rule of the mixin has samples."""
    assert [] == [name for name, count in observations.mixin.items() if not count]
