"""The work with pynsq: a Reader with a handler, or a Writer whose callbacks publish again.

The future that `pub` returns is that of the write to the socket, not of nsqd's OK. To await the OK,
its documentation uses the callback.
"""

import nsq
import tornado.ioloop
from job import BODY, IN_FLIGHT, JOB, NSQD, TOPIC


def publish_when_connected():
    if not any(connection.connected() for connection in writer.conns.values()):
        loop.call_later(0.01, publish_when_connected)
        return
    for _ in range(JOB["tasks"]):
        writer.pub(TOPIC, BODY, published)


def published(_connection, data):
    if isinstance(data, Exception):
        raise data
    writer.pub(TOPIC, BODY, published)


loop = tornado.ioloop.IOLoop.current()
if JOB["way"] == "publish":
    writer = nsq.Writer([NSQD])
    loop.add_callback(publish_when_connected)
else:
    options = {"nsqd_tcp_addresses": [NSQD], "max_in_flight": IN_FLIGHT}
    nsq.Reader(
        topic=TOPIC, channel=JOB["channel"], message_handler=lambda _message: True, **options
    )
nsq.run()
