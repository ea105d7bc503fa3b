"""Runs pynsq's Writer and Reader, used as pynsq's documentation describes."""

import nsq
import tornado.ioloop
from job import INSIST_SECONDS, JOB, bodies, received, say, touch_times

OPTIONS = {
    "heartbeat_interval": JOB["heartbeat_ms"] // 1000,
    "tls_v1": JOB["tls"] is not None,
    "tls_options": {"ca_certs": JOB["tls"]} if JOB["tls"] else None,
    "snappy": JOB["compression"] == "snappy",
    "deflate": JOB["compression"] == "deflate",
    "auth_secret": JOB["secret"],
}


def acknowledge(connection, data):
    """Count one answer; after the last one, continue with `published`."""
    if isinstance(data, Exception):
        say("error", text=str(data))
    state["left"] -= 1
    if state["left"] == 0:
        published()


def connected():
    return any(connection.connected() for connection in writer.conns.values())


def publish():
    """Publish everything in the job; try again until the writer is connected."""
    if not connected():
        loop.call_later(0.01, publish)
        return
    say("publishing")
    for body in bodies("publish"):
        writer.pub(JOB["topic"], body, acknowledge)
    for body in bodies("defer"):
        writer.dpub(JOB["topic"], JOB["defer_ms"], body, acknowledge)
    if JOB["multi_publish"]:
        writer.mpub(JOB["topic"], bodies("multi_publish"), acknowledge)
    if state["left"] == 0:
        published()


def published():
    say("published")
    if JOB["insist"]:
        insist()
    if JOB["consume"]:
        consume()


def insist():
    writer.pub(JOB["topic"], JOB["insist"].encode(), insisted)


def insisted(connection, data):
    if isinstance(data, Exception):
        say("refused", text=str(data), connected=connected())
        loop.call_later(INSIST_SECONDS, insist)
    else:
        say("accepted")


def consume():
    where = {"nsqd_tcp_addresses": [JOB["nsqd"]]}
    if JOB["lookupd"]:
        where = {"lookupd_http_addresses": ["http://" + JOB["lookupd"]]}
    state["reader"] = nsq.Reader(
        JOB["topic"],
        JOB["channel"],
        message_handler=handle,
        lookupd_poll_interval=1,
        max_in_flight=JOB["max_in_flight"],
        max_backoff_duration=16,
        msg_timeout=JOB["msg_timeout_ms"] / 1000,
        **where,
        **OPTIONS,
    )


def handle(message):
    message.enable_async()
    plan = received(message.body, message.attempts)
    if plan == "finish":
        message.finish()
    elif plan in ("requeue", "backoff"):
        message.requeue(backoff=plan == "backoff", time_ms=JOB["requeue_ms"])
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
writer = nsq.Writer([JOB["nsqd"]], **OPTIONS)
loop.add_callback(publish)
nsq.run()
