"""`/metrics` and the debug routes of nsqlookupd."""

from prometheus_client.parser import text_string_to_metric_families

from tests.nsqlookupd.test_http import Lookup, Peer, lookup, lookup_options

__all__ = ["lookup", "lookup_options"]


async def test_the_registrys_figures(lookup: Lookup) -> None:
    """nsqds, topics, channels and tombstones, by Prometheus' own parser."""
    one = await Peer.connect(lookup, "one", "t c", "u")
    two = await Peer.connect(lookup, "two", "t d")
    assert (await lookup.ask("POST", "/topic/tombstone?topic=t&node=two:4151"))[0] == 200
    text = (await lookup.get("/metrics")).decode()
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }

    for name, value in {"producers": 2, "topics": 2, "channels": 2, "tombstones": 1}.items():
        assert samples[(f"nsqlookupd_{name}",)] == value
    assert samples[("nsqlookupd_topic_producers", "t")] == 1
    assert samples[("nsqlookupd_topic_producers", "u")] == 1
    assert ("process_resident_memory_bytes",) in samples
    await one.leave()
    await two.leave()


async def test_the_debug_routes(lookup: Lookup) -> None:
    """Those of NSQ's nsqlookupd, and none that changes anything."""
    for name in ("", "cmdline", "symbol", "goroutine", "block", "threadcreate", "heap"):
        assert (await lookup.ask("GET", f"/debug/pprof/{name}"))[0] == 200
    assert (await lookup.ask("GET", "/debug/pprof/profile?seconds=0.05"))[0] == 200
    assert (await lookup.ask("PUT", "/debug/setblockrate?rate=1"))[0] == 404
    assert (await lookup.ask("POST", "/debug/freememory"))[0] == 404
