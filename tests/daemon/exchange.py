"""Send one HTTP request as bytes on a new connection."""

import asyncio

from sparq.daemon.address import Listener


class Answer:
    """An HTTP answer: status, headers with lower-case names, body."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:])}


async def exchange(listener: Listener, raw: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(raw)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return answer


async def ask(
    listener: Listener, method: str, target: str, body: bytes = b"", *headers: str
) -> Answer:
    lines = [f"{method} {target} HTTP/1.1", "Host: x", "Connection: close", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    raw = "\r\n".join([*lines, "", ""]).encode() + body
    return Answer(await exchange(listener, raw))
