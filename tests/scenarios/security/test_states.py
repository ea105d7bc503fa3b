"""Commands for other clients' messages, in a wrong state, or before TLS or compression starts."""

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sparq.options.limits import IdentifyLimits
from sparq.protocol import commands
from sparq.protocol.commands import COMMANDS, fin, identify, mpub, pub, rdy, req, sub, touch
from sparq.protocol.errors import RemoteError
from sparq.protocol.parser import CommandParser
from sparq.protocol.receiver import decode_message
from tests.nsqd.daemon import connected, start, stop
from tests.scenarios.security.attackers import until, until_closed, v2
from tests.support.certificates import Certificates
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import FRAME_ERROR, OK, V2Client

UNKNOWN = (b"0" * 16, b"f" * 16, b"0123456789abcdeg", b"\xff" * 16)
Shows = Callable[[str], None]


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    with spawn_nsqd(tmp_path_factory.mktemp("nsqd")) as server:
        yield server


def delivered(client: V2Client) -> bytes:
    """Return the id of the next message."""
    kind, data = client.frame()
    assert kind == 2, data
    return decode_message(data)[2]


@pytest.mark.security("N-8")
def test_answers_to_another_clients_messages_are_refused(nsqd: NsqdServer, shows: Shows) -> None:
    """FIN, REQ and TOUCH of another client's, unknown or past messages get errors, no effect."""
    ways = (fin, lambda one: req(one, 0), touch)
    refused = 0

    def refuse(client: V2Client, ids: tuple[bytes, ...]) -> None:
        nonlocal refused
        for one in ids:
            for way, name in zip(ways, (b"FIN", b"REQ", b"TOUCH"), strict=True):
                kind, text = client.ask(way(one))
                assert (kind, text.split(b" ")[0]) == (FRAME_ERROR, b"E_%b_FAILED" % name), text
                refused += 1

    with ExitStack() as stack:
        owner, thief, stranger = (stack.enter_context(v2(nsqd)) for _ in range(3))
        assert OK == owner.ask(sub("ids", "c")) == thief.ask(sub("ids", "c"))
        assert OK == stranger.ask(sub("ids", "another")) == owner.ask(pub("ids", b"mine"))
        owner.send(rdy(1))
        mine = delivered(owner)
        for client in (thief, stranger):
            refuse(client, (mine, *UNKNOWN))
        refuse(owner, UNKNOWN)
        figures = nsqd.channel("ids", "c")
        assert (1, 0, 0) == tuple(
            figures[key] for key in ("in_flight_count", "requeue_count", "timeout_count")
        )
        owner.send(fin(mine))
        until(lambda: nsqd.channel("ids", "c")["in_flight_count"] == 0)
        for client in (owner, thief, stranger):
            refuse(client, (mine,))

        assert 0 == nsqd.channel("ids", "c")["depth"]
        assert 0 == nsqd.channel("ids", "c")["requeue_count"]
        assert 1 == nsqd.channel("ids", "another")["depth"]
    shows(f"foreign, unknown and past ids {refused} · effects 0")


# N-9: states

SAMPLES = {
    b"IDENTIFY": identify(b"{}"),
    b"AUTH": commands.auth(b"secret"),
    b"SUB": sub("states", "other"),
    b"PUB": pub("states", b"x"),
    b"MPUB": mpub("states", [b"x"]),
    b"DPUB": commands.dpub("states", 1_000, b"x"),
    b"RDY": rdy(1),
    b"FIN": fin(b"0" * 16),
    b"REQ": req(b"0" * 16, 0),
    b"TOUCH": touch(b"0" * 16),
    b"CLS": commands.cls(),
    b"NOP": commands.nop(),
    b"ATTACH": commands.attach("states", "held"),
    b"ENDS": commands.ends("states"),
    b"READ": commands.read("states", "0" * 32, 0, 1, 1),
    b"COMMIT": commands.commit("states", "held", 1, 1),
}
SILENT = {b"NOP", b"RDY"}
"""Commands that have no answer when they are allowed."""

STATES = {
    commands.STATE_INIT: b"",
    commands.STATE_SUBSCRIBED: sub("states", "c#ephemeral"),
    commands.STATE_CLOSING: sub("states", "c#ephemeral") + commands.cls(),
}


def skip_messages(client: V2Client) -> tuple[int, bytes]:
    """Return the next frame that is not a message."""
    while (frame := client.frame())[0] == 2:
        pass
    return frame


@pytest.mark.security("N-9")
def test_commands_in_the_wrong_state_are_refused(nsqd: NsqdServer, shows: Shows) -> None:
    """A command in the wrong state gets E_INVALID and ends the connection; others are allowed."""
    assert SAMPLES.keys() == COMMANDS.keys()
    assert nsqd.post("/pub?topic=states", b"x") == b"OK"
    refused = 0
    for state, begin in STATES.items():
        for name, kind in COMMANDS.items():
            with v2(nsqd) as client:
                client.send(begin)
                for _ in range(begin.count(b"\n")):
                    assert client.frame()[0] == 0
                client.send(SAMPLES[name])
                if state not in kind.states:
                    wrong = b"E_INVALID cannot %b in current state" % name
                    assert (FRAME_ERROR, wrong) == skip_messages(client)
                    until_closed([client])
                    refused += 1
                elif name not in SILENT:
                    _, answer = skip_messages(client)
                    assert b"in current state" not in answer, (state, name, answer)
                else:
                    client.send(pub("states", b"x"))
                    assert OK == skip_messages(client)

    count = len(STATES) * len(COMMANDS)
    shows(f"states and commands {count} · refused {refused} · allowed {count - refused}")


@pytest.mark.security("N-9")
async def test_plain_commands_before_a_tls_handshake_are_not_executed(tmp_path: Path) -> None:
    """Commands sent in the clear after an IDENTIFY that starts TLS are not executed."""
    certificates = Certificates.make(tmp_path)
    (tmp_path / "data").mkdir()
    daemon = await start(tmp_path / "data", **certificates.options())
    asked = identify(b'{"feature_negotiation":true,"tls_v1":true}')
    for injected in (pub("injected", b"x"), commands.nop(), sub("injected", "c"), b"\n"):
        async with connected(daemon) as client:
            client.send(asked + injected)
            assert b'"tls_v1":true' in await client.response()
            with pytest.raises(Exception, match=r"(?i)alert|wrong|closed|version|handshake|^$"):
                await client.shake_hands(certificates.client())
                await client.response()
            await client.end()
    assert not (await daemon.stats())["topics"]
    async with connected(daemon) as client:
        await client.upgrade(certificates.client())
        client.send(pub("sealed", b"x"))
        assert b"OK" == await client.response()
    await stop(daemon)


@pytest.mark.security("N-9")
@pytest.mark.parametrize("kind", ["deflate", "snappy"])
def test_plain_commands_before_compression_are_not_executed(nsqd: NsqdServer, kind: str) -> None:
    """Plain commands after an IDENTIFY that starts compression end the connection, unexecuted."""
    body = b'{"feature_negotiation":true,"%b":true}' % kind.encode()
    with v2(nsqd) as client:
        client.send(identify(body) + pub(f"plain-{kind}", b"x") * 10)
        assert client.frame()[0] == 0
        until_closed([client])

    names = {topic["topic_name"] for topic in nsqd.get_json("/stats?format=json")["topics"]}
    assert f"plain-{kind}" not in names


# N-10: TLS required


@pytest.mark.security("N-10")
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != b"IDENTIFY"])
def test_only_identify_is_accepted_before_required_tls(name: bytes) -> None:
    """If TLS is required, every command except IDENTIFY is refused before its arguments are parsed.

    So no connection without TLS reaches another state.
    """
    parser = CommandParser(IdentifyLimits())
    parser.needs_tls = True
    parser.feed(SAMPLES[name])

    with pytest.raises(RemoteError, match=r"in current state \(TLS required\)"):
        parser.next()


@pytest.mark.security("N-9")
def test_only_ascii_digits_are_numbers(nsqd: NsqdServer) -> None:
    """RDY, REQ and DPUB accept ASCII digits only: no signs, underscores or other notations."""
    for text in ("-1", "+1", "1_0", "٣", "0x10", "1e3", "1.0"):
        for command in (f"RDY {text}\n", f"REQ {'0' * 16} {text}\n"):
            with v2(nsqd) as client:
                assert OK == client.ask(sub("numbers", "c#ephemeral"))
                kind, answer = client.ask(command.encode())
                assert (FRAME_ERROR, b"E_INVALID") == (kind, answer.split(b" ")[0]), (
                    command,
                    answer,
                )
        with v2(nsqd) as client:
            kind, answer = client.ask(f"DPUB numbers {text}\n".encode() + struct.pack(">i", 1))
            assert (FRAME_ERROR, b"E_INVALID") == (kind, answer.split(b" ")[0])
