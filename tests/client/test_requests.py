"""client.requests: answers are matched to pending requests, first in, first out."""

import asyncio

import pytest

from sparq.client.errors import ConnectionLostError
from sparq.client.requests import OK, Awaited, PendingRequest, PendingRequests


def pending(count: int) -> tuple[PendingRequests, list[asyncio.Future[bytes]]]:
    """`count` requests of 10 bytes each, sent at 0, 1, 2 ... s, and their futures."""
    requests = PendingRequests()
    futures = [asyncio.get_running_loop().create_future() for _ in range(count)]
    for number, future in enumerate(futures):
        requests.waiting.append(Awaited(10, float(number), future))
        requests.size += 10
    return requests, futures


@pytest.mark.parametrize(("oks", "surplus"), [(1, 0), (2, 0), (3, 0), (5, 2)])
async def test_oks_go_to_the_oldest_requests(oks: int, surplus: int) -> None:
    """``confirm`` answers the oldest requests and returns the number of surplus OKs."""
    requests, futures = pending(3)

    assert surplus == requests.confirm(oks)
    answered = min(oks, 3)
    assert [True] * answered + [False] * (3 - answered) == [each.done() for each in futures]
    assert {OK} == {each.result() for each in futures[:answered]}
    assert (3 - answered, 10 * (3 - answered)) == (len(requests), requests.size)
    assert requests.oldest == (float(answered) if answered < 3 else None)


async def test_the_answer_to_a_cancelled_request_is_dropped() -> None:
    """A cancelled request's OK, error or other answer is dropped; the next one gets its own."""
    requests, futures = pending(4)
    for cancelled in futures[:3]:
        cancelled.cancel()
    requests.confirm(1)
    for number in range(2):
        request = requests.next()
        assert request is not None
        if number:
            request.fail(ValueError("refused"))
        else:
            request.respond(b"text")
    requests.confirm(1)

    assert OK == futures[3].result()
    assert requests.next() is None


async def test_requests_of_one_class_are_confirmed_together() -> None:
    """A run of OKs costs one ``confirm_all`` for each run of requests of one class, in order."""
    calls: list[list[PendingRequest]] = []

    class Recorded(Awaited):
        @classmethod
        def confirm_all(cls, requests: object) -> None:
            assert isinstance(requests, list)
            calls.append(requests)

    requests, futures = pending(1)
    future = futures[0]
    recorded = [Recorded(1, 0.0, future) for _ in range(3)]
    requests.waiting.extendleft(reversed(recorded[:2]))
    requests.waiting.append(recorded[2])
    requests.size += 3

    assert 0 == requests.confirm(4)
    assert [recorded[:2], recorded[2:]] == calls
    assert (OK, 0) == (future.result(), requests.size)


async def test_the_answer_to_a_replaced_request_goes_to_its_replacement() -> None:
    """The answer to a replaced request goes to its replacement."""
    requests, futures = pending(2)
    other: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    requests.replace({requests.waiting[0]: Awaited(10, 0.0, other)})
    requests.confirm(2)

    assert [False, True, True] == [each.done() for each in (*futures, other)]
    assert 0 == requests.size


@pytest.mark.parametrize("executed", [False, None])
async def test_a_lost_connection_fails_all_requests(executed: bool | None) -> None:
    """Each request gets ConnectionLostError with the reason and ``executed``."""
    requests, futures = pending(3)
    requests.lose("gone", executed)

    for future in futures:
        with pytest.raises(ConnectionLostError, match="gone") as lost:
            future.result()
        assert lost.value.executed is executed
    assert (0, 0) == (len(requests), requests.size)
