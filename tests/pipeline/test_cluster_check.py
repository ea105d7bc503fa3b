"""The check of the cluster before any query starts; test_mistakes has the errors it finds."""

import time
from types import SimpleNamespace

from sparq.pipeline import cluster_check
from sparq.pipeline.cluster_check import check_cluster
from tests.pipeline.settings_examples import settings_with
from tests.support.published import publish
from tests.support.servers import free_port, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import wait_for


def test_the_check_creates_no_topic_or_channel(tmp_path):
    """One nsqlookupd of two is enough; no topic or channel is created."""
    with spawn_nsqlookupd(tmp_path) as lookupd, spawn_nsqd(tmp_path, lookupds=(lookupd,)) as nsqd:
        publish(nsqd, "clicks", b"click", channel="")
        wait_for(lambda: "clicks" in lookupd.get_json("/topics")["topics"])
        addresses = (f"127.0.0.1:{free_port()}", lookupd.http)
        for topic in ("clicks", "other"):
            check_cluster(settings_with(lookupd_http_addresses=addresses, topic=topic))

        (found,) = nsqd.get_json("/stats?format=json")["topics"]
        assert ("clicks", []) == (found["topic_name"], found["channels"])


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
        settings = settings_with(lookupd_http_addresses=(lookupd.http,), run_dir=str(tmp_path))
        check_cluster(settings)
        assert pauses
