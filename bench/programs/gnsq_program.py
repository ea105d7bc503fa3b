"""The work with gnsq: a Consumer with a handler, or a Producer that greenlets share."""

import gevent
import gnsq
from job import BODY, JOB, Laps, ready

laps = Laps()
count = begun = 0


def counted():
    global count  # noqa: PLW0603 - a small program; its callbacks have no object
    count += 1
    if count >= laps.next:
        laps.reached(count)


def handle(_consumer, message):
    assert not message.has_responded()  # gnsq finishes it when this returns
    counted()


def publish():
    global begun  # noqa: PLW0603 - as above: its greenlets have no object
    while begun < JOB["total"]:
        begun += 1
        producer.publish(JOB["topic"], BODY)
        counted()


ready("gnsq", "gevent")
if JOB["way"] == "publish":
    producer = gnsq.Producer(JOB["nsqd"])
    producer.start()
    greenlets = [gevent.spawn(publish) for _ in range(JOB["tasks"])]
    gevent.joinall(greenlets, raise_error=True)
else:
    gnsq.Consumer(
        JOB["topic"],
        JOB["channel"],
        nsqd_tcp_addresses=[JOB["nsqd"]],
        message_handler=handle,
        max_in_flight=JOB["in_flight"],
    ).start(block=False)
while True:
    gevent.sleep(1)
