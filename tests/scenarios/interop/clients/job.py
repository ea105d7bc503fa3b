"""What every client script here is told and what it says: JSON in, lines of JSON out.

Standard input is the job:

    nsqd               address, host:port
    lookupd            the nsqlookupd to find the topic by, or null: consume from `nsqd`
    topic, channel     where to publish to and consume from
    publish            bodies for one PUB each
    multi_publish      bodies for one MPUB (none: no MPUB)
    defer              bodies for one DPUB each, due after `defer_ms`
    insist             a body to publish until it is taken, or null
    consume            whether to consume then
    max_in_flight      how many messages at most are with the client at a time
    plans              body -> requeue | backoff | timeout | touch, for its first delivery
    msg_timeout_ms     what the client asks for, where it can; so are the next three
    heartbeat_ms
    tls                the file of the certificate authority, or null: no TLS
    compression        snappy | deflate | null
    secret             for AUTH, or null
    requeue_ms         the delay of a requeue
    hold_ms            how long `touch` holds a message, touching it all the while

The script says `publishing`, publishes, says `published`, consumes, says `received` for each
delivery, and goes on until it is killed: whoever reads its lines decides when it has seen enough.
A delivery without a plan, or not the first of its message, is finished. `insist` says `refused`
each time, and whether the client is still connected then; the script connects again only where the
client leaves that to its user, and says `accepted` in the end. What goes wrong is said as `error`.
"""

import json
import sys
import time
import traceback

JOB = json.load(sys.stdin)
STARTED = time.monotonic()
INSIST_SECONDS = 0.2


def say(event, **facts):
    """One line to whoever started this."""
    at_ms = int((time.monotonic() - STARTED) * 1000)
    sys.stdout.write(json.dumps({"event": event, "at_ms": at_ms, **facts}) + "\n")
    sys.stdout.flush()


def bodies(name):
    """The bodies that the job has under this name, as bytes."""
    return [body.encode() for body in JOB[name]]


def received(body, attempts):
    """Say what came, and return what to do with it."""
    body = bytes(body).decode()
    say("received", body=body, attempts=attempts)
    return JOB["plans"].get(body, "finish") if attempts == 1 else "finish"


def touch_times():
    """How often to touch, and how many seconds apart, to hold a message for `hold_ms`."""
    apart_ms = JOB["msg_timeout_ms"] // 3
    return JOB["hold_ms"] // apart_ms, apart_ms / 1000


def complain(kind, error, trace):
    """The hook for what nothing caught: an `error` line, and the trace where it is usual."""
    say("error", text=f"{kind.__name__}: {error}")
    traceback.print_exception(kind, error, trace)


sys.excepthook = complain
