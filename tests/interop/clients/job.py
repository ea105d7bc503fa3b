"""What every client script here is told and what it says: JSON in, lines of JSON out.

The first argument is the job:

    nsqd, lookupd      addresses, host:port
    topic, channel     where to publish to and consume from
    publish            bodies for one PUB each
    multi_publish      bodies for one MPUB (none: no MPUB)
    defer              bodies for one DPUB each, due after `defer_ms`
    plan               finish | requeue | timeout | touch: what happens to a first delivery
    msg_timeout_ms     what the client asks for, where it can
    requeue_ms         the delay of a requeue
    hold_ms            how long `touch` holds a message, touching it all the while

The script publishes, says `published`, consumes, says `received` for each delivery, and goes on
until it is killed: whoever reads its lines decides when it has seen enough. A delivery that is
not the first of its message is finished whatever the plan.
"""

import json
import sys
import time

JOB = json.loads(sys.argv[1])
STARTED = time.monotonic()


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
    say("received", body=body.decode(), attempts=attempts)
    return JOB["plan"] if attempts == 1 else "finish"


def touch_times():
    """How often to touch, and how many seconds apart, to hold a message for `hold_ms`."""
    apart_ms = JOB["msg_timeout_ms"] // 3
    return JOB["hold_ms"] // apart_ms, apart_ms / 1000
