"""gnsq at work: Producer and Consumer on gevent, as its own documentation has it.

gnsq has no setting for the message timeout: the daemon's own default holds. Its Producer cannot
take the OK that follows an upgrade to TLS or to compression: there, NsqdTCPClient publishes, which
is the connection under it.
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
    """The part of Producer's face that is used here, on a connection of its own."""

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
    """Publish until it is taken; the producer connects again by itself."""
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
    gevent.sleep(1)  # until it is ended
