"""The parameters of the API's endpoints: invalid values and their errors."""

from __future__ import annotations

from tests.nsqadmin.v2.conftest import Api, snapshot_where

QUESTIONS: list[tuple[str, dict[str, str], int, str]] = [
    ("/topics", {"limit": "x"}, 400, "INVALID_ARG_LIMIT: use a number from 1 to 1000"),
    ("/topics", {"limit": "0"}, 400, "INVALID_ARG_LIMIT"),
    ("/topics", {"sort": "colour"}, 400, "INVALID_ARG_SORT: sort must be one of"),
    ("/nodes", {"sort": "colour"}, 400, "INVALID_ARG_SORT"),
    ("/channels", {"state": "sad"}, 400, "INVALID_ARG_STATE"),
    ("/topics/none", {}, 404, "TOPIC_NOT_FOUND"),
    ("/topics/t/none", {}, 404, "CHANNEL_NOT_FOUND"),
    ("/nodes/a:1", {}, 404, "NODE_NOT_FOUND"),
    ("/messages", {"channel": "c"}, 400, "MISSING_ARG_TOPIC"),
    ("/messages", {"topic": "t", "channel": "c", "bodies": "x"}, 400, "INVALID_ARG_BODIES"),
    ("/messages", {"topic": "t", "channel": "none"}, 404, "CHANNEL_NOT_FOUND"),
    ("/messages", {"topic": "t", "channel": "c", "after": "x"}, 400, "INVALID_ARG_AFTER"),
    ("/messages", {"topic": "t", "channel": "c", "nodes": "a:22"}, 404, "NODE_NOT_FOUND"),
    ("/log", {"topic": "none"}, 404, "TOPIC_NOT_FOUND"),
    ("/log", {"topic": "t", "from": "soon"}, 400, "INVALID_ARG_FROM"),
    ("/message", {"topic": "t", "id": "x"}, 400, "INVALID_ARG_ID"),
    ("/message", {"topic": "t", "id": "0" * 16}, 404, "MESSAGE_NOT_FOUND"),
    ("/body", {"topic": "t", "id": "0" * 16, "node": "a:22"}, 404, "NODE_NOT_FOUND"),
    ("/seek", {"topic": "t", "channel": "c", "to": "5"}, 400, "INVALID_ARG_TO: an index"),
    ("/export", {"what": "messages"}, 400, "MISSING_ARG_TOPIC"),
    ("/export", {"what": "topics", "sort": "x"}, 400, "INVALID_ARGUMENT"),
    ("/export", {"what": "log", "topic": "none"}, 404, "TOPIC_NOT_FOUND"),
]  # fmt: skip


async def test_invalid_requests_are_refused(api: Api) -> None:
    """Each invalid request is refused with a code and, for some, an explanation."""
    await snapshot_where(api, "/topics", lambda result: result["total"])
    for path, query, status, words in QUESTIONS:
        answer = await api.get(path, status, **query)
        assert answer["message"].startswith(words), (path, query)
