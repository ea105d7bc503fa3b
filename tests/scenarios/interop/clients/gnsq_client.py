"""Runs gnsq's Producer and Consumer on gevent, used as gnsq's documentation describes.

gnsq has no setting for the message timeout: nsqd's default applies. Its Producer cannot handle the
OK after an upgrade to TLS or compression: in that case this script publishes with NsqdTCPClient,
the connection class that Producer uses.
"""

import gevent
import gnsq
from job import INSIST_SECONDS, JOB, bodies, received, say, touch_times

OPTIONS = {
    "heartbeat_interval": JOB["heartbeat_ms"] // 1000,
    "tls_v1": JOB["tls"] is not None,
    "tls_options": {"ca_certs": JOB["tls"]},
    "snappy": JOB["compression"] == "snappy",
    "deflate": JOB["compression"] == "deflate",
    "auth_secret": JOB["secret"] and JOB["secret"].encode(),
}


class LayeredProducer:
    """The subset of Producer's interface that this script uses, on a single NsqdTCPClient."""

    def __init__(self, address):
        host, port = address.split(":")
        self._connection = gnsq.NsqdTCPClient(host, int(port), **OPTIONS)
        self._connection.connect()
        self._connection.identify()

    def publish(self, topic, body):
        self._connection.publish(topic, body)
        self._connection.check_ok()

    def multipublish(self, topic, bodies):
        self._connection.multipublish(topic, bodies)
        self._connection.check_ok()


def started_producer():
    if JOB["tls"] or JOB["compression"]:
        return LayeredProducer(JOB["nsqd"])
    producer = gnsq.Producer(JOB["nsqd"], **OPTIONS)
    producer.start()
    return producer


def publish(producer):
    say("publishing")
    for body in bodies("publish"):
        producer.publish(JOB["topic"], body)
    for body in bodies("defer"):
        producer.publish(JOB["topic"], body, defer=JOB["defer_ms"])
    if JOB["multi_publish"]:
        producer.multipublish(JOB["topic"], bodies("multi_publish"))
    say("published")


def insist(producer):
    """Publish until nsqd accepts the message; the producer reconnects automatically."""
    open_connections = []
    producer.on_error.connect(lambda _producer, error: open_connections.clear(), weak=False)
    while True:
        open_connections[:] = [JOB["nsqd"]]
        try:
            producer.publish(JOB["topic"], JOB["insist"].encode())
        except gnsq.errors.NSQException as error:
            say("refused", text=repr(error), connected=bool(open_connections))
            gevent.sleep(INSIST_SECONDS)
        else:
            return say("accepted")


def handle(_consumer, message):
    message.enable_async()
    plan = received(message.body, message.attempts)
    if plan == "finish":
        message.finish()
    elif plan in ("requeue", "backoff"):
        message.requeue(JOB["requeue_ms"], backoff=plan == "backoff")
    elif plan == "touch":
        gevent.spawn(hold, message)


def hold(message):
    times, apart = touch_times()
    for _ in range(times):
        message.touch()
        gevent.sleep(apart)
    message.finish()


def consume():
    where = {"nsqd_tcp_addresses": [JOB["nsqd"]]}
    if JOB["lookupd"]:
        where = {"lookupd_http_addresses": ["http://" + JOB["lookupd"]]}
    gnsq.Consumer(
        JOB["topic"],
        JOB["channel"],
        message_handler=handle,
        lookupd_poll_interval=1,
        max_in_flight=JOB["max_in_flight"],
        **where,
        **OPTIONS,
    ).start()


producer = started_producer()
publish(producer)
if JOB["insist"]:
    insist(producer)
if JOB["consume"]:
    consume()
while True:
    gevent.sleep(1)  # until the test kills this process
