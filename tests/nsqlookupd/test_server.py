"""An nsqlookupd object with real sockets: start, reload and stop."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from sparq.daemon.access import tokens
from sparq.daemon.address import ListenError
from sparq.nsqlookupd import server
from sparq.nsqlookupd.main import listen
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.nsqlookupd.server import Nsqlookupd
from sparq.options.mistakes import Mistake
from tests.support.options import changed
from tests.support.waiting import until


def options(
    tcp_address: str = "127.0.0.1:0", http_address: str = "127.0.0.1:0"
) -> NsqlookupdOptions:
    return NsqlookupdOptions(tcp_address=tcp_address, http_address=http_address)


async def test_a_failed_start_leaves_nothing_open() -> None:
    """If the HTTP port is in use, the start raises ListenError and closes its TCP port."""
    first = Nsqlookupd(options())
    await first.start()
    where = f"127.0.0.1:{first.tcp_port}"
    with pytest.raises(ListenError):
        await Nsqlookupd(options("127.0.0.1:0", where)).start()
    await first.stop()

    again = Nsqlookupd(options(where))
    await again.start()
    await again.stop()


@pytest.mark.usefixtures("log_levels_are_restored")
async def test_sighup_sets_the_log_level(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGHUP applies the log level; other changes need a restart, a bad file changes nothing."""
    hangups: list[Callable[[], None]] = []
    monkeypatch.setattr(server.lifecycle, "on_hangup", hangups.append)
    running, stop = options(), asyncio.Event()
    wanted = changed(running, log_level=logging.DEBUG, max_names=7)
    files = iter([Mistake("no such file"), wanted, wanted])

    def read_again() -> NsqlookupdOptions:
        found = next(files)
        if isinstance(found, Mistake):
            raise found
        return found

    serving = asyncio.create_task(server.serve(running, listen(running), read_again, stop))
    await until(lambda: hangups)
    levels = []
    for _ in range(3):
        hangups[0]()
        levels.append(logging.getLogger().level)
    stop.set()
    await serving

    assert [logging.WARNING, logging.DEBUG, logging.DEBUG] == levels
    logged = [line for line in caplog.messages if line.startswith("SIGHUP: ")]
    assert logged[0] == "SIGHUP: nothing is changed: no such file"
    assert logged.count('SIGHUP: log_level is now "debug"') == 1
    assert logged.count("SIGHUP: max_names has changed: that needs a restart") == 2


class RecordedReviews:
    """A connection that records its reviews."""

    def __init__(self, reviews: list[bool]) -> None:
        self._reviews = reviews

    def review(self, *, again: bool) -> None:
        self._reviews.append(again)


async def test_a_reload_reads_the_tokens_again(tmp_path: Path) -> None:
    """``reload`` reviews each connection's token, if a token file is configured."""
    reviews: list[bool] = []
    (tmp_path / "tokens").write_text(f"{tokens.make('a', 'register')[1]}\n")
    for path, count in (("", 0), (str(tmp_path / "tokens"), 1)):
        daemon = Nsqlookupd(changed(options(), token_file=path))
        daemon.connections.add(RecordedReviews(reviews))  # type: ignore[arg-type]  # it only counts
        daemon.reload()
        assert [True] * count == reviews
