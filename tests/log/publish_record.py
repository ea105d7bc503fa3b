"""Records what was published to a log, and compares it with the log's contents."""

from sparq.log.log import Log
from sparq.testing import ManualClock
from tests.log.log_operations import commit, read_all


class PublishRecord:
    """Attempted, acknowledged and refused messages by index."""

    def __init__(self) -> None:
        self.attempted: dict[int, bytes] = {}
        self.acknowledged: dict[int, bytes] = {}
        self.refused: dict[int, bytes] = {}

    def publish(self, log: Log, number: int, clock: ManualClock, *, sync: bool | None) -> None:
        """Publish three messages as one batch."""
        bodies = [b"%d/%d/" % (number, k) + bytes([number % 251]) * (97 * k) for k in range(3)]
        first = log.end_index
        batch = dict(enumerate(bodies, first))
        assert not batch.keys() & self.acknowledged.keys(), "an index was given twice"
        # A later run may use indexes of refused messages again that no segment had reserved:
        # nothing has seen them.
        self.refused = {index: body for index, body in self.refused.items() if index not in batch}
        self.attempted.update(batch)
        clock.advance(1_000_000)
        done = commit(log, bodies, clock, sync=sync)
        (self.refused if done.error else self.acknowledged).update(batch)

    def check(self, log: Log, *, refused_may_be_there: bool = False) -> None:
        """Compare with the log's contents."""
        found = read_all(log)
        lost = {index for index in self.acknowledged if index not in found}
        assert not lost
        assert {index: self.attempted[index] for index in found} == found
        assert log.end_index > max(found, default=0), "an index would be given twice"
        if not refused_may_be_there:
            assert not found.keys() & self.refused.keys()
            assert [damage for damage in log.damage if damage.messages] == []
