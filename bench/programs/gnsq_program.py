"""The work with gnsq: a Consumer with a handler, or a Producer that greenlets share."""

import gevent
import gnsq
from job import BODY, IN_FLIGHT, JOB, NSQD, TOPIC


def handle(_consumer, message):
    assert not message.has_responded()  # gnsq finishes it when this returns


def publish():
    while True:
        producer.publish(TOPIC, BODY)


if JOB["way"] == "publish":
    producer = gnsq.Producer(NSQD)
    producer.start()
    gevent.joinall([gevent.spawn(publish) for _ in range(JOB["tasks"])], raise_error=True)
options = {"nsqd_tcp_addresses": [NSQD], "message_handler": handle, "max_in_flight": IN_FLIGHT}
gnsq.Consumer(TOPIC, JOB["channel"], **options).start()
