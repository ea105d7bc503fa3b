"""pynsq at work: a Reader with a handler, and a Writer whose callbacks publish the next message.

Its `pub` returns a future of the socket, not of nsqd's OK: the callback is how its documentation
awaits that.
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
    global count  # noqa: PLW0603 - a program of one purpose, whose callbacks have no object
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
    global begun  # noqa: PLW0603 - as above: callbacks without an object
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
