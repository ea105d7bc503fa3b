"""client.blocking.consumer: what no conversation with a session shows (see test_session)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

import sparq
from sparq.client.blocking.loop_thread import LoopThread
from tests.client.conftest import Company


def test_ctrl_c_while_it_starts_leaves_no_consumer_behind(
    company: Company, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that nobody has got would receive messages that nobody handles."""
    caplog.set_level(logging.CRITICAL, "sparq.client")
    topic, nsqd = company.make("orphan"), company.nsqds[0]
    asked = LoopThread.ask

    def interrupted(self: LoopThread, question: Callable[[], Any]) -> Any:
        answer = asked(self, question)
        if getattr(question, "__name__", "") == "start":
            raise KeyboardInterrupt
        return answer

    with sparq.connect(nsqd.tcp) as session:
        monkeypatch.setattr(LoopThread, "ask", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.consumer(topic, "c")
        monkeypatch.undo()
        nsqd.post(f"/pub?topic={topic}", b"x")
        message = session.consumer(topic, "c").receive(20)
        message.finish()
        deadline = time.monotonic() + 15
        while len(nsqd.channel(topic, "c")["clients"]) != 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    assert 1 == message.attempts
