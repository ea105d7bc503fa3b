"""nsqd with a mistake: the topic `boom` raises an exception, in the place that CRASH_IN names."""

import os
import sys
from typing import Any

from sparq.broker.broker import Broker
from sparq.log.commit import Commit
from sparq.nsqd import main

PLACES = {"turn": (Broker, "end_turn"), "timer": (Broker, "tick"), "thread": (Commit, "run")}


def broken(method: Any) -> Any:
    """Return the method with the mistake."""

    def call(self: Any, *arguments: Any) -> Any:
        topics = self.topics if isinstance(self, Broker) else {self.place.directory[-6:]: 1}
        if "boom" in topics or "t-boom" in topics:
            raise AssertionError("boom")
        return method(self, *arguments)

    return call


if __name__ == "__main__":
    owner, name = PLACES[os.environ["CRASH_IN"]]
    setattr(owner, name, broken(getattr(owner, name)))
    sys.exit(main.main())
