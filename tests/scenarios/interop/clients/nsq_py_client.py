"""Runs nsq-py's Client and Reader on plain sockets, used as nsq-py's documentation describes.

Its client sends AUTH automatically and returns the answer like any other. For TLS it requests
version 1.0 only (`ssl.PROTOCOL_TLSv1`), for which current OpenSSL has no ciphers: this script
redefines that name to allow any version.
"""

import ssl
import threading
import time

from job import INSIST_SECONDS, JOB, bodies, received, say, touch_times
from nsq.client import Client
from nsq.reader import Reader
from nsq.response import Error

OPTIONS = {
    "auth_secret": JOB["secret"].encode() if JOB["secret"] else None,
    "connect_timeout": 30,
    "heartbeat_interval": JOB["heartbeat_ms"],
    "msg_timeout": JOB["msg_timeout_ms"],
}
if JOB["tls"]:
    OPTIONS["tls_v1"] = True
    ssl.PROTOCOL_TLSv1 = ssl.PROTOCOL_TLS
if JOB["compression"]:
    OPTIONS[JOB["compression"]] = True
TOPIC = JOB["topic"].encode()


def publish():
    client = Client(nsqd_tcp_addresses=[JOB["nsqd"]], **OPTIONS)
    say("publishing")
    answers = client.wait_response() if JOB["secret"] else []
    for body in bodies("publish"):
        answers += client.pub(TOPIC, body)
    if JOB["multi_publish"]:
        answers += client.mpub(TOPIC, *bodies("multi_publish"))
    for answer in answers:
        if isinstance(answer, Error):
            say("error", text=str(answer))
    say("published")
    return client


def insist(client):
    """Publish until nsqd accepts the message; the client reconnects only in `check_connections`."""
    while isinstance((answer := client.pub(TOPIC, JOB["insist"].encode())[0]), Error):
        connected = any(connection.alive() for connection in client.connections())
        say("refused", text=str(answer), connected=connected)
        time.sleep(INSIST_SECONDS)
        client.check_connections()
    say("accepted")


def consume():
    where = {"nsqd_tcp_addresses": [JOB["nsqd"]]}
    if JOB["lookupd"]:
        where = {"lookupd_http_addresses": ["http://" + JOB["lookupd"]]}
    reader = Reader(
        TOPIC,
        JOB["channel"].encode(),
        max_in_flight=JOB["max_in_flight"],
        **where,
        **OPTIONS,
    )
    for message in reader:
        handle(message)


def handle(message):
    plan = received(message.body, message.attempts)
    if plan == "finish":
        message.fin()
    elif plan == "requeue":
        message.req(JOB["requeue_ms"])
    elif plan == "touch":
        threading.Thread(target=hold, args=(message,), daemon=True).start()


def hold(message):
    times, apart = touch_times()
    for _ in range(times):
        message.touch()
        time.sleep(apart)
    message.fin()


client = publish()
if JOB["insist"]:
    insist(client)
if JOB["consume"]:
    consume()
while True:
    time.sleep(1)  # until the test kills this process
