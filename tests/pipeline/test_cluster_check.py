"""The check of the cluster before any query starts: which errors it finds; it changes nothing."""

import time
from types import SimpleNamespace

import pytest

from sparq.pipeline import cluster_check
from sparq.pipeline.cluster_check import check_cluster
from sparq.pipeline.settings import Settings, SettingsError
from tests.support.published import publish
from tests.support.servers import free_port, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import wait_for


def settings(address, **more):
    return Settings(data="data", lookupd_http_addresses=(address,), **more)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """An nsqlookupd, and an nsqd with the topic that is registered there."""
    with (
        spawn_nsqlookupd(tmp_path_factory.mktemp("lookupd")) as lookupd,
        spawn_nsqd(tmp_path_factory.mktemp("nsqd"), lookupds=(lookupd,)) as nsqd,
    ):
        publish(nsqd, "clicks", b"click", channel="")
        wait_for(lambda: "clicks" in lookupd.get_json("/topics")["topics"])
        yield SimpleNamespace(lookupd=lookupd, nsqd=nsqd)


def test_the_check_creates_no_topic_or_channel(cluster):
    """One nsqlookupd of two is enough; no topic or channel is created."""
    gone = f"127.0.0.1:{free_port()}"
    check_cluster(
        Settings(data="data", lookupd_http_addresses=(gone, cluster.lookupd.http), topic="other")
    )
    check_cluster(settings(cluster.lookupd.http))

    (topic,) = cluster.nsqd.get_json("/stats?format=json")["topics"]
    assert ("clicks", []) == (topic["topic_name"], topic["channels"])


def test_without_an_answer_the_error_names_flag_and_reason(monkeypatch):
    """If no nsqlookupd answers in time, the error has the flag and the reason."""
    monkeypatch.setattr(cluster_check, "ANSWER_SECONDS", 0.0)
    gone = f"127.0.0.1:{free_port()}"

    with pytest.raises(SettingsError, match=rf"^--lookupd-http-address: no nsqlookupd .*{gone}"):
        check_cluster(settings(gone))


def test_the_check_waits_for_an_nsqlookupd_that_is_starting(monkeypatch, tmp_path):
    """The check waits for an nsqlookupd that a supervisor starts at the same time."""
    monkeypatch.setattr(cluster_check, "ANSWER_SECONDS", 0.0)
    with spawn_nsqlookupd(tmp_path) as lookupd:
        lookupd.terminate()
        pauses = []

        def start_meanwhile(seconds):
            pauses.append(seconds)
            if len(pauses) == 1:
                lookupd.start()
            time.sleep(seconds)

        clock = SimpleNamespace(monotonic=time.monotonic, sleep=start_meanwhile)
        monkeypatch.setattr(cluster_check, "time", clock)
        check_cluster(settings(lookupd.http, run_dir=str(tmp_path)))
        assert pauses


def test_an_nsqds_address_as_nsqlookupd_is_an_error(cluster):
    """The address of an nsqd in --lookupd-http-address is an error about that flag."""
    with pytest.raises(SettingsError, match=r"^--lookupd-http-address: .* is not an nsqlookupd"):
        check_cluster(settings(cluster.nsqd.http))
