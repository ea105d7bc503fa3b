"""What there is to read after an offset, in messages and in bytes, as the nsqds tell."""

from collections.abc import Mapping

from sparq.client.range_reader import Ends, Place
from sparq.spark.admission import Backlog, share_bytes
from sparq.spark.fleet import Fleet
from sparq.spark.offsets import LogPosition, parse_key


class Reach:
    """How far logs may be read from where they were read to.

    Args:
        fleet: the nsqds.
        found: by key, up to where each log has been read.
        stops: by log, how far it may be read; a log that is missing is out of reach.
    """

    def __init__(
        self, fleet: Fleet, found: Mapping[str, LogPosition], stops: Mapping[str, Ends]
    ) -> None:
        self._fleet = fleet
        self._found = found
        self._stops = {
            key: stop for key in found if (stop := stops.get(parse_key(key).log)) is not None
        }
        self._counts = {key: self._messages(key) for key in self._stops}

    def _messages(self, key: str) -> int:
        stop, position = self._stops[key], self._found[key]
        if position.ordinal is None or stop.end <= position.index:
            return 0
        return stop.end_ordinal - position.ordinal

    def backlogs(self, bytes_max: int) -> dict[str, Backlog]:
        """What each log has.

        Args:
            bytes_max: the most bytes of all logs together; 0: any number.
        """
        if not bytes_max:
            return {key: Backlog(count, count) for key, count in self._counts.items()}
        full = {
            key: place
            for key, count in self._counts.items()
            if count and (place := self._place_within(key, bytes_max))
        }
        sizes = {key: place.size for key, place in full.items()}
        shares = share_bytes(bytes_max, sizes)
        return {
            key: Backlog(self._counts[key], self._allowed(key, place, shares[key]))
            for key, place in full.items()
        }

    def _allowed(self, key: str, full: Place, share: int) -> int:
        """Messages of a log that its share of the bytes lets through."""
        place = full if full.size <= share else self._place_within(key, share)
        ordinal = self._found[key].ordinal
        if place is None or ordinal is None:
            return 0
        return min(self._counts[key], max(0, place.at_ordinal - ordinal))

    def _place_within(self, key: str, size: int) -> Place | None:
        return self._fleet.place_within(parse_key(key).log, self._found[key].index, size)

    def after(self, key: str, count: int) -> LogPosition:
        """The place `count` messages on in a log; where it was read to if nsqd has gone."""
        stop, position = self._stops[key], self._found[key]
        if count >= self._counts[key]:
            return LogPosition(stop.end, stop.end_ordinal)
        place = self._fleet.place_after(parse_key(key).log, position.index, count)
        return position if place is None else LogPosition(place.at, place.at_ordinal)
