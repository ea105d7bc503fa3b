"""The work with pynsq: a Reader with a handler, or a Writer whose callbacks publish again.

The future that `pub` returns is that of the write to the socket, not of nsqd's OK. To await the OK,
its documentation uses the callback.
"""

import nsq
import tornado.ioloop
from job import BODY, JOB, Laps, ready

laps = Laps()
count = begun = 0


def handle(_message):
    counted()
    return True


def counted():
    global count  # noqa: PLW0603 - a small program; its callbacks have no object
    count += 1
    if count >= laps.next:
        laps.reached(count)


def publish_when_connected():
    if not any(connection.connected() for connection in writer.conns.values()):
        loop.call_later(0.01, publish_when_connected)
        return
    for _ in range(JOB["tasks"]):
        publish()


def publish():
    global begun  # noqa: PLW0603 - as above: its callbacks have no object
    if begun < JOB["total"]:
        begun += 1
        writer.pub(JOB["topic"], BODY, published)


def published(_connection, data):
    if isinstance(data, Exception):
        raise data
    counted()
    publish()


ready("pynsq", "tornado")
loop = tornado.ioloop.IOLoop.current()
if JOB["way"] == "publish":
    writer = nsq.Writer([JOB["nsqd"]])
    loop.add_callback(publish_when_connected)
else:
    reader = nsq.Reader(
        topic=JOB["topic"],
        channel=JOB["channel"],
        message_handler=handle,
        nsqd_tcp_addresses=[JOB["nsqd"]],
        max_in_flight=JOB["in_flight"],
    )
nsq.run()
