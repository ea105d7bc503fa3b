"""The protocol between a test and a client script: a JSON job in, lines of JSON out.

Standard input is the job:

    nsqd               address, host:port
    lookupd            the nsqlookupd to find the topic through; null: consume from `nsqd`
    topic, channel     where to publish to and consume from
    publish            bodies, published with one PUB each
    multi_publish      bodies, published with one MPUB (empty: no MPUB)
    defer              bodies, published with one DPUB each, due after `defer_ms`
    insist             a body to publish until nsqd accepts it, or null
    consume            whether to consume after that
    max_in_flight      maximum number of messages in flight
    plans              body -> requeue | backoff | timeout | touch, for its first delivery
    msg_timeout_ms     requested by the client, if it can; so are the next three
    heartbeat_ms
    tls                the file of the certificate authority; null: no TLS
    compression        snappy | deflate | null
    secret             for AUTH, or null
    requeue_ms         the delay of a requeue
    hold_ms            how long `touch` holds a message, touching it repeatedly

The script prints the event `publishing`, publishes, prints `published`, consumes, and prints
`received` for each delivery. It runs until the test kills it. A delivery without a plan, or one
that is not the first of its message, is finished. For `insist` it prints `refused` after each
refusal, with whether the client is still connected, and `accepted` in the end; it reconnects only
if the client leaves that to its user. It prints problems as `error`.
"""

import json
import sys
import time
import traceback

JOB = json.load(sys.stdin)
STARTED = time.monotonic()
INSIST_SECONDS = 0.2


def say(event, **facts):
    """Print one line for the test that started this script."""
    at_ms = int((time.monotonic() - STARTED) * 1000)
    sys.stdout.write(json.dumps({"event": event, "at_ms": at_ms, **facts}) + "\n")
    sys.stdout.flush()


def bodies(name):
    """Return the job's bodies under this name, as bytes."""
    return [body.encode() for body in JOB[name]]


def received(body, attempts):
    """Print the delivery, and return what to do with it."""
    body = bytes(body).decode()
    say("received", body=body, attempts=attempts)
    return JOB["plans"].get(body, "finish") if attempts == 1 else "finish"


def touch_times():
    """Return how often to touch, and the interval in seconds, to hold a message for `hold_ms`."""
    apart_ms = JOB["msg_timeout_ms"] // 3
    return JOB["hold_ms"] // apart_ms, apart_ms / 1000


def complain(kind, error, trace):
    """Handle uncaught exceptions: print an `error` line, and the traceback to stderr."""
    say("error", text=f"{kind.__name__}: {error}")
    traceback.print_exception(kind, error, trace)


sys.excepthook = complain
