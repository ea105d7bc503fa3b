"""Imports a data path of Go's nsqd; nsqd does so at its first start on it, nsq_check looks ahead.

`queues` finds the topics, channels and queue files, and `records` reads the messages of a file.
`topic_import` writes a topic's queues into one of sparq's logs; `data_path_import` does this for
the whole data path and moves Go's files aside; a kill at any moment loses nothing. `check` reports
what an import would find. Like the broker, this package uses no event loop, socket, thread or
clock, and only `sparq.log.disk` opens files.
"""
