"""gnsq at work: Producer and Consumer on gevent, as its own documentation has it.

gnsq has no setting for the message timeout: the daemon's own default holds.
"""

import gevent
import gnsq
from job import JOB, bodies, received, say, touch_times


def publish():
    producer = gnsq.Producer(JOB["nsqd"])
    producer.start()
    for body in bodies("publish"):
        producer.publish(JOB["topic"], body)
    for body in bodies("defer"):
        producer.publish(JOB["topic"], body, defer=JOB["defer_ms"])
    if JOB["multi_publish"]:
        producer.multipublish(JOB["topic"], bodies("multi_publish"))
    say("published")


def handle(_consumer, message):
    message.enable_async()
    plan = received(message.body, message.attempts)
    if plan == "finish":
        message.finish()
    elif plan == "requeue":
        message.requeue(JOB["requeue_ms"], backoff=False)
    elif plan == "touch":
        gevent.spawn(hold, message)


def hold(message):
    times, apart = touch_times()
    for _ in range(times):
        message.touch()
        gevent.sleep(apart)
    message.finish()


publish()
gnsq.Consumer(
    JOB["topic"],
    JOB["channel"],
    message_handler=handle,
    lookupd_http_addresses=["http://" + JOB["lookupd"]],
    lookupd_poll_interval=1,
    max_in_flight=10,
).start()
