"""What every program here is told, and what it says: JSON as its one argument, lines of JSON out.

The argument is the job:

    nsqd           address, host:port
    topic, channel where to publish to and consume from
    way            iterate | handler | batches | blocking: how to consume; publish
    total          how many messages there are in all
    warm_up        how many of them come before the measured part
    in_flight      how many messages may be with the consumer at a time
    tasks          how many publishes may await their OK at a time, each in a task of its own
    body_size      bytes of each message to publish
    batch_size     messages of a batch, at most
    uvloop         whether to run on uvloop, where the program can

A program says `ready` with the versions of what it is made of, then `begin` and `end` around the
measured part, and goes on until it is killed: what it has sent must reach nsqd.
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
    """One line to whoever started this."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def ready(*packages):
    """Which packages, of which versions, are at work here."""
    say("ready", python=platform.python_version(), packages={p: version(p) for p in packages})


class Laps:
    """The measured part: whoever has counted to `next` calls `reached`."""

    def __init__(self):
        self.next = JOB["warm_up"]
        self._begun = None

    def reached(self, count):
        """The first time the measured part begins, the second time it ends."""
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
