"""The program `nsq_to_http`: each message of a channel becomes an HTTP request.

It has the flags of NSQ's `nsq_to_http`, and differs from it where that loses messages:

1. A message is finished when a POST was answered with 2xx, or a GET with 200. What else comes of
   it is a failure: the message is requeued, and the consumer backs off. None is finished for
   having failed often, unless `--consumer-opt=max_attempts,N` asks for it.
2. While a request takes its time, and while a message waits for its turn, nsqd is told that it is
   being handled (TOUCH).
3. A host that cannot be reached costs no requeue: the others are asked, and then all of them again
   for two seconds. One that starts anew is back by then.
4. A body is the body of a POST as it is. In a GET it stands percent-encoded in the place of the one
   `%s`, in path or query; what would be a step up in the path (`..`) is not sent.
5. Certificates are verified, by the authorities of the system or of the file that the environment
   variable `SSL_CERT_FILE` names. Redirects are not followed, and no proxy is asked.
6. A user and a password in a URL are sent as such. They and the query are never logged.
7. `--mode=round-robin` asks the hosts in turn. `hostpool` does so, too, but passes one that failed
   over for 30 s, and for twice as long with each further failure, up to 15 min. `epsilon-greedy`
   prefers those that answer quickly.
8. An nsqd that is given and cannot be reached at the start ends it with status 1, after
   `--wait-for-nsqd`.

SIGINT, SIGTERM and SIGHUP: what is under way is finished, then exit status 0.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys

import aiohttp

from sparq.client.message import Message
from sparq.program.logging import LEVELS, set_up
from sparq.program.version import sparq_version
from sparq.protocol.durations import SECOND
from sparq.protocol.identify import NSQ_VERSION
from sparq.tools import common
from sparq.tools.command_line import UsageError
from sparq.tools.commands.nsq_to_http import CONTENT_TYPE, PROGRAM, Options, main
from sparq.tools.endpoint import Endpoint, UnsendableError, open_session, parse_headers
from sparq.tools.hostpool import hosts_of
from sparq.tools.relay import Relay, consumer_of
from sparq.tools.timings import check_every

logger = logging.getLogger(__name__)


def check(options: Options) -> None:
    """Hold the options to what can be done.

    Raises:
        UsageError: one cannot; the text names its flag.
    """
    if not options.topic or not options.channel:
        raise UsageError("--topic and --channel are required")
    if bool(options.get) == bool(options.post):
        both = "use --get or --post not both"
        raise UsageError(both if options.get else "--get or --post required")
    if options.get and options.content_type != CONTENT_TYPE:
        raise UsageError("--content-type goes with --post only")
    if not 0 <= options.sample <= 1:
        raise UsageError(f"--sample is {options.sample:g}, not from 0 to 1")
    if options.n < 1:
        raise UsageError(f"--n is {options.n}, not 1 or more")
    for flag, value in (
        ("connect", options.http_client_connect_timeout_ns),
        ("request", options.http_client_request_timeout_ns),
    ):
        if value <= 0:
            raise UsageError(f"--http-client-{flag}-timeout should be positive")


def endpoints_of(options: Options) -> dict[str, Endpoint]:
    """Where messages go, by what is said of it.

    Raises:
        UsageError: a URL or a header is not valid.
    """
    headers = {
        "User-Agent": f"{PROGRAM} v{NSQ_VERSION} sparq/{sparq_version()}",
        "Accept-Encoding": "identity",
    }
    if options.post:
        headers["Content-Type"] = options.content_type
    method, texts = ("POST", options.post) if options.post else ("GET", options.get)
    found: dict[str, Endpoint] = {}
    for text in dict.fromkeys(texts):
        endpoint = Endpoint(method, text, parse_headers(options.header, headers))
        # Several may differ in what is not shown of them.
        same = sum(name.partition(" ")[0] == endpoint.shown for name in found)
        found[f"{endpoint.shown} ({same + 1})" if same else endpoint.shown] = endpoint
    return found


class NsqToHttp:
    """The tool at work.

    Args:
        options: what it was told.
        session: what requests are made with.

    Raises:
        UsageError: an option is not valid; the text names its flag.
    """

    def __init__(self, options: Options, session: aiohttp.ClientSession) -> None:
        self._sample = options.sample
        self._session = session
        self._endpoints = endpoints_of(options)
        self._rng = random.Random()  # noqa: S311 - chooses messages and hosts, guards nothing
        hosts = hosts_of(options.mode, self._endpoints, self._rng)
        self.relay = Relay(self._endpoints, hosts, options.status_every, options.n)

    async def handle(self, message: Message) -> None:
        """Send a message, or skip it as ``--sample`` has it."""
        if self._sample < 1 and self._rng.random() >= self._sample:
            return

        async def send(name: str) -> None:
            await self._endpoints[name].send(self._session, message.body)

        try:
            await self.relay.hand_on(message, send)
        except UnsendableError as error:
            # Its own fault: nobody else is to wait for it.
            logger.error("message %s is not sent: %s", message.id, error)
            await message.requeue(backoff=False)


async def serve(options: Options, stop: asyncio.Event) -> int:
    """Run the tool until the event is set; its exit status.

    Raises:
        UsageError: an option is not valid.
    """
    check(options)
    set_up(f"[{PROGRAM}] ", LEVELS["info"])
    check_every(options.status_every)
    seconds = (options.http_client_connect_timeout_ns, options.http_client_request_timeout_ns)
    async with open_session(*(each / SECOND for each in seconds)) as session:
        tool = NsqToHttp(options, session)
        consumer = consumer_of(
            PROGRAM,
            options,
            options.topic,
            options.channel,
            tool.handle,
            max_in_flight=options.max_in_flight,
        )
        await tool.relay.serve([consumer], stop, options.wait_for_nsqd_ns)
    return 0


def start(options: Options) -> int:
    """Run the program; the exit status."""
    return common.run(PROGRAM, lambda stop: serve(options, stop))


if __name__ == "__main__":
    sys.exit(main())
