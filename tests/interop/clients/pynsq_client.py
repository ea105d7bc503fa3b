"""pynsq at work: Writer and Reader, as its own documentation has it."""

import nsq
import tornado.ioloop
from job import JOB, bodies, received, say, touch_times


def acknowledge(connection, data):
    """Count one answer; when all are in, start to consume."""
    if isinstance(data, nsq.Error):
        say("error", text=str(data))
    state["left"] -= 1
    if state["left"] == 0:
        say("published")
        consume()


def publish():
    """Everything that the job publishes; retried until the writer is connected."""
    if not any(connection.connected() for connection in writer.conns.values()):
        loop.call_later(0.01, publish)
        return
    for body in bodies("publish"):
        writer.pub(JOB["topic"], body, acknowledge)
    for body in bodies("defer"):
        writer.dpub(JOB["topic"], JOB["defer_ms"], body, acknowledge)
    if JOB["multi_publish"]:
        writer.mpub(JOB["topic"], bodies("multi_publish"), acknowledge)


def consume():
    state["reader"] = nsq.Reader(
        JOB["topic"],
        JOB["channel"],
        message_handler=handle,
        lookupd_http_addresses=["http://" + JOB["lookupd"]],
        lookupd_poll_interval=1,
        max_in_flight=10,
        msg_timeout=JOB["msg_timeout_ms"] / 1000,
    )


def handle(message):
    message.enable_async()
    plan = received(message.body, message.attempts)
    if plan == "finish":
        message.finish()
    elif plan == "requeue":
        message.requeue(backoff=False, time_ms=JOB["requeue_ms"])
    elif plan == "touch":
        hold(message, touch_times()[0])


def hold(message, times):
    if times == 0:
        message.finish()
        return
    message.touch()
    loop.call_later(touch_times()[1], hold, message, times - 1)


loop = tornado.ioloop.IOLoop.current()
state = {
    "left": len(JOB["publish"]) + len(JOB["defer"]) + bool(JOB["multi_publish"]),
    "reader": None,
}
writer = nsq.Writer([JOB["nsqd"]])
loop.add_callback(publish)
nsq.run()
