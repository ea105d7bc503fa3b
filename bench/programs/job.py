"""Input and output of every program here: JSON as the only argument, lines of JSON on stdout.

The argument is the job:

    nsqd           address, host:port
    topic, channel to publish to and to consume from
    way            iterate | handler | batches | blocking: how to consume; or publish
    total          number of messages in all
    warm_up        number of messages before the measured part
    in_flight      maximum number of messages in flight
    tasks          number of tasks that publish; each awaits an OK before its next publish
    body_size      bytes of each published message
    batch_size     maximum number of messages in a batch
    uvloop         whether to run on uvloop, if the program can

A program prints `ready` with the versions of its packages, then `begin` and `end` at the borders of
the measured part. It runs until it is killed, so that everything it has sent reaches nsqd.
"""

import json
import math
import platform
import sys
import time
from importlib.metadata import version

JOB = json.loads(sys.argv[1])
BODY = bytes(range(256)) * (JOB["body_size"] // 256) + bytes(JOB["body_size"] % 256)


def say(event, **facts):
    """Print a line of JSON with an event."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def ready(*packages):
    """Print `ready` with the versions of Python and of these packages."""
    say("ready", python=platform.python_version(), packages={p: version(p) for p in packages})


class Laps:
    """Times the measured part: the program calls `reached` when its count reaches `next`."""

    def __init__(self):
        self.next = JOB["warm_up"]
        self._begun = None

    def reached(self, count):
        """Begin the measured part at the first call, and end it at the second."""
        if self._begun is None:
            self.next = JOB["total"]
            say("begin")
            self._begun = (count, time.process_time(), time.perf_counter())
            return
        seconds, cpu = time.perf_counter(), time.process_time()
        first, cpu_before, seconds_before = self._begun
        self.next = math.inf
        facts = {"seconds": seconds - seconds_before, "cpu_seconds": cpu - cpu_before}
        say("end", messages=count - first, **facts)
