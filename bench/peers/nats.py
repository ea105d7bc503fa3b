"""NATS JetStream: a stream in a file, a push consumer for each channel, explicit acknowledgement.

It syncs at its default interval, every two minutes. It has no batches, so a publisher pipelines. A
consumer's RDY count is the channel's `max_ack_pending`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from bench.peers.peer import (
    Consuming,
    Dialogue,
    PatternAcknowledger,
    Peer,
    Program,
    Publishing,
    RefusedError,
    counting,
)

HELLO = b'CONNECT {"verbose":false,"pedantic":false,"headers":false}\r\nPING\r\n'


def publish(subject: bytes, body: bytes, reply: bytes) -> bytes:
    """A PUB that requests an answer on the subject `reply`."""
    return b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(body), body)


class Nats(Peer):
    """nats-server with JetStream."""

    can = frozenset({"channels"})
    needs = "nats-server"

    def make_program(self) -> Program:
        """nats-server, with its store in the folder."""
        place = ["-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder)]
        return Program(["nats-server", *place], self.folder, self.port)

    def hello(self) -> Dialogue:
        """Open a connection and send CONNECT."""
        dialogue = Dialogue(self.port)
        dialogue.line()
        dialogue.send(HELLO)
        assert dialogue.line() == b"PONG"
        return dialogue

    def inbox(self, dialogue: Dialogue) -> bytes:
        """Subscribe to a subject for answers to this connection only; return it."""
        name = b"answers.%d" % dialogue.sock.getsockname()[1]
        dialogue.send(b"SUB %s 1\r\n" % name)
        return name

    def ask(self, subject: str, question: dict[str, Any]) -> None:
        """Send a request to JetStream's API.

        Raises:
            RefusedError: the answer is an error.
        """
        dialogue = self.hello()
        body = json.dumps(question).encode()
        subject = f"$JS.API.{subject}"
        dialogue.send(publish(subject.encode(), body, self.inbox(dialogue)))
        size = int(dialogue.line().rsplit(b" ", 1)[1])
        answer = json.loads(dialogue.exactly(size))
        dialogue.close()
        if "error" in answer:
            raise RefusedError(f"{subject}: {answer['error']}")

    def prepare(self, topic: str, channels: Sequence[str], ready: int) -> None:
        """Create a stream and its durable consumers."""
        stream = {"name": topic, "subjects": [topic], "storage": "file", "retention": "limits"}
        self.ask(f"STREAM.CREATE.{topic}", stream)
        for channel in channels:
            config = {
                "durable_name": channel,
                "deliver_subject": f"to.{topic}.{channel}",
                "deliver_group": "group",
                "ack_policy": "explicit",
                "deliver_policy": "all",
                "max_ack_pending": ready,
            }
            question = {"stream_name": topic, "config": config}
            self.ask(f"CONSUMER.DURABLE.CREATE.{topic}.{channel}", question)

    def drop(self, topic: str, channels: Sequence[str]) -> None:
        """Delete the stream and its consumers."""
        self.ask(f"STREAM.DELETE.{topic}", {})

    def publishing(self, topic: str, *, batches: bool) -> Publishing:
        """Publish by PUB; the stream answers each."""
        dialogue = self.hello()
        inbox, subject = self.inbox(dialogue), topic.encode()
        answers = counting(b'"seq"', b'"error"', b"-ERR")
        return Publishing(dialogue.done(), answers, lambda body: publish(subject, body, inbox))

    def consuming(self, topic: str, channel: str, size: int, ready: int) -> Consuming:
        """Consume from the channel's subject, which its consumers share."""
        begin = f"SUB to.{topic}.{channel} group 1\r\n".encode()
        acknowledger = PatternAcknowledger(rb"MSG \S+ \d+ (\S+) ", size, b"PUB %s 0\r\n\r\n")
        return Consuming(self.hello().done(), begin, acknowledger)
