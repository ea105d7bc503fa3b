"""Additional load for the mixed run: requests and clients on topics that no checker watches.

Only responses that nsqd must never send are counted: internal errors.
"""

import asyncio
import random
from contextlib import suppress

from proofs.mixed_actors import Place, ask
from sparq.client import Config, Consumer, Message

TOPIC = "noise"
PAUSE_SECONDS = 0.25
CLIENT_SECONDS = (1.0, 4.0)
BODY = b"a message\nanother one\n" * 10
REQUESTS = (
    ("POST", "/pub?topic=noise", BODY),
    ("POST", "/mpub?topic=noise", BODY),
    ("POST", "/mpub?topic=noise&defer=300", BODY),
    ("POST", "/pub?topic=noise%23ephemeral&defer=300", BODY),
    ("POST", "/mpub?topic=noise&binary=true", b"\x00\x00\x00\x01\x00\x00\x00\x02ab"),
    ("POST", "/topic/empty?topic=markers", b""),
    ("POST", "/topic/empty?topic=markers%23ephemeral", b""),
    ("POST", "/topic/empty?topic=noise", b""),
    ("POST", "/channel/create?topic=noise&channel=c", b""),
    ("POST", "/channel/pause?topic=noise&channel=c", b""),
    ("POST", "/channel/unpause?topic=noise&channel=c", b""),
    ("POST", "/channel/seek?topic=noise&channel=c&to=earliest", b""),
    ("POST", "/channel/seek?topic=noise&channel=c&to=latest", b""),
    ("POST", "/channel/empty?topic=noise&channel=c", b""),
    ("POST", "/channel/delete?topic=noise&channel=c", b""),
    ("POST", "/topic/delete?topic=noise%23ephemeral", b""),
    ("GET", "/stats", b""),
    ("GET", "/stats?format=json", b""),
    ("GET", "/stats?format=json&include_clients=false&include_mem=false", b""),
    ("GET", "/metrics", b""),
    ("GET", "/info", b""),
    ("GET", "/ping", b""),
    ("GET", "/config/msg_timeout", b""),
    ("PUT", "/config/log_level", b"warn"),
    ("PUT", "/config/nsqlookupd_tcp_addresses", b"[]"),
    ("POST", "/pub?topic=no%20name", BODY),
    ("POST", "/mpub?topic=noise&binary=true", b"\x00\x00\x00\x09ab"),
    ("GET", "/nowhere", b""),
)
CONFIGS = (
    {"deflate": True},
    {"snappy": True},
    {"sample_rate": 50},
    {"output_buffer_size": 64, "output_buffer_timeout": 0.025},
)


async def requests(place: Place, chance: random.Random, ending: asyncio.Event) -> None:
    """Send one request after another, in random order."""
    while not ending.is_set():
        method, path, body = chance.choice(REQUESTS)
        with suppress(ConnectionError):
            status, answer = await ask(place, method, path, body)
            if status >= 500 and b"EXITING" not in answer.upper():
                place.refusals[f"{path}: {status} {answer[:60].decode(errors='replace')}"] += 1
        await asyncio.sleep(PAUSE_SECONDS * 2 * chance.random())


async def clients(place: Place, chance: random.Random, ending: asyncio.Event) -> None:
    """Run sparq's own client, each time with a setting that no other actor uses."""

    def handle(_message: Message) -> None:
        """Return at once: the consumer then finishes the message."""

    while not ending.is_set():
        config = Config(max_in_flight=20, **chance.choice(CONFIGS))
        consumer = Consumer(
            TOPIC, "c", handler=handle, nsqd_tcp_addresses=[place.tcp], config=config
        )
        async with consumer:
            await asyncio.sleep(chance.uniform(*CLIENT_SECONDS))
