"""sparq.connect by other ways than TCP in clear: its loop is not the one that other tests run."""

from __future__ import annotations

from pathlib import Path

import sparq
from tests.client.certificates import certificates
from tests.client.test_layers_with_nsqd import ElsewhereNsqd, tls_flags
from tests.support.shared_daemons import SharedDaemons
from tests.support.waiting import wait_for


def test_a_unix_socket_with_tls_and_compression(tmp_path: Path) -> None:
    """A path is an address as any other; who is not trusted is refused there, too."""
    files = certificates(tmp_path / "certificates")
    path = str(tmp_path / "nsqd.sock")
    flags = (f"--data-path={tmp_path}", *tls_flags(files.server))
    nsqd = ElsewhereNsqd("sparq.nsqd", tmp_path, flags)
    nsqd.tcp = path
    options = {"tls_root_ca_file": str(files.authority), "snappy": True}
    with nsqd:
        nsqd.start()
        with sparq.connect(path, **options) as session:
            receipt = session.producer().publish("t", b"x" * 5_000)
            message = session.consumer("t", "c").receive(20)
            message.finish()
            ignorant = session.producer(tls_root_ca_file="", tls_v1=True, stop_timeout=0.0)
            ignorant.submit("t", b"x")
            wait_for(lambda: "certificate" in ignorant.errors.get(path, ""))

    assert (path, path, b"x" * 5_000) == (receipt.nsqd, message.nsqd, message.body)


def test_where_connections_come_from(shared_daemons: SharedDaemons) -> None:
    """local_addr is heeded by this loop as well."""
    nsqd = shared_daemons.nsqds[0]
    topic = shared_daemons.make("session.local")
    with sparq.connect(nsqd.tcp, local_addr="127.0.0.2") as session:
        session.producer().publish(topic, b"x")
        session.consumer(topic, "c").receive(20).finish()
        [client] = nsqd.channel(topic, "c")["clients"]

    assert client["remote_address"].startswith("127.0.0.2:")
