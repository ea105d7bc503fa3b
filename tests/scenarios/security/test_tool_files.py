"""S-2: tools check names again, and write files only in their folder. D-4: bodies are bytes."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import ModuleType

import pytest
from aiohttp import web

from sparq.protocol.names import is_valid_name
from sparq.tools import commands, nsq_tail, nsq_to_file, nsq_to_http, nsq_to_nsq, to_nsq
from sparq.tools.commands import NsqToFileOptions
from sparq.tools.nsq_to_file import (
    FilenameError,
    Folder,
    TopicOutput,
    template,
)
from tests.scenarios.security.test_names import NASTY, tree
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.waiting import until
from tests.tools.recording import recording, until_finished

NASTY_FORMATS = ("../<TOPIC>", "/../x", "a/../../x", "..", "./..", "<TOPIC>/..", "a\0b", "\udc80")

TOOLS: dict[ModuleType, list[str]] = {
    nsq_tail: [],
    nsq_to_file: [],
    nsq_to_http: ["--post=http://127.0.0.1:1/"],
    nsq_to_nsq: ["--destination-nsqd-tcp-address=127.0.0.1:2"],
    to_nsq: [],
}


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    """The nsqd with the malicious topics."""
    with spawn_nsqd(tmp_path_factory.mktemp("nasty")) as server:
        yield server


@pytest.mark.parametrize("tool", TOOLS)
def test_every_tool_checks_names_again(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every tool rejects an invalid topic in one line, before it connects or creates anything."""
    run = getattr(commands, tool.__name__.rpartition(".")[2])
    for name in [name for name in NASTY if name and not is_valid_name(name)]:
        words = ["--nsqd-tcp-address=127.0.0.1:1", *TOOLS[tool]]
        if tool is nsq_to_file:
            words.append(f"--output-dir={tmp_path}/out")
        with pytest.raises(SystemExit) as ended:
            raise SystemExit(run([*words, f"--topic={name}"]))
        said = capsys.readouterr().err
        assert (1, 1) == (ended.value.code, said.count("\n"))
        assert "name" in said
    assert [] == os.listdir(tmp_path)


def test_no_file_is_written_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file outside the folder is changed on a real disk, despite symlinks in the folder."""
    for slow in ("fsync", "fdatasync"):  # only where files are written matters here
        monkeypatch.setattr(os, slow, lambda fd: None)
    for beside in ("x", "a", "file"):
        (tmp_path / beside).write_bytes(b"precious")
    folder, finished = Folder(str(tmp_path / "in" / "work")), Folder(str(tmp_path / "in" / "done"))
    for below, name in itertools.product((folder, finished), ("CON", "aB")):
        (Path(below.path) / name).symlink_to(tmp_path, target_is_directory=True)
        (Path(below.path) / f"{name}.log-000000").symlink_to(tmp_path / "file")
    before, written = tree(tmp_path, tmp_path / "in"), 0
    formats = ("<TOPIC>.log", "<TOPIC>/<HOST>", "<HOST>/<TOPIC>", *NASTY_FORMATS)
    for name, text in itertools.product(NASTY, formats):
        topic = name if is_valid_name(name) else "CON"
        with suppress(FilenameError, OSError):
            options = NsqToFileOptions(filename_format=f"{text}<REV>", host_identifier=name)
            made = template(options, topic, is_moved=True)
            output = TopicOutput(made, folder, finished, options)
            output.write([b"x"], sync=True)
            output.close()
            written += 1
    assert before == tree(tmp_path, tmp_path / "in")
    assert written > len(NASTY)


@asynccontextmanager
async def lying_nsqlookupd(topics: list[object], nsqd: NsqdServer) -> AsyncIterator[str]:
    """Run a fake nsqlookupd that lists these topics, each with this nsqd as producer."""
    host, port = nsqd.tcp.split(":")
    producers = [{"broadcast_address": host, "tcp_port": int(port)}]

    async def answer(request: web.Request) -> web.Response:
        listed = request.path.endswith("/topics")
        return web.json_response({"topics": topics} if listed else {"producers": producers})

    application = web.Application()
    application.router.add_get("/{tail:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield "{}:{}".format(*runner.addresses[0])
    finally:
        await runner.cleanup()


async def test_invalid_topics_from_nsqlookupd_create_no_file_outside(
    nsqd: NsqdServer, tmp_path: Path
) -> None:
    """nsq_to_file ignores invalid topic names from nsqlookupd, and writes only in its folder."""
    (tmp_path / "x").write_bytes(b"precious")
    topics = [name for name in NASTY if name != "\ud800"]
    for topic in ("..", "...", "CON"):
        nsqd.post(f"/pub?topic={topic}", topic.encode())
    async with lying_nsqlookupd([*topics, None, 7, [".."], {"a": 1}], nsqd) as address:
        told = [f"--lookupd-http-address={address}", f"--output-dir={tmp_path}/in"]
        told += ["--topic-pattern=.", "--filename-format=<TOPIC>/x", "--max-in-flight=1"]
        async with recording(*told, "--skip-empty-files"):
            for topic in ("...", "CON"):
                await until_finished(nsqd, topic, 1)
            await until(lambda: len(nsqd.get_json("/stats?format=json")["topics"]) > 20)

    written = tree(tmp_path, tmp_path / "none")
    assert {"x": b"precious", "in/.../x": b"...\n", "in/CON/x": b"CON\n"} == written
    assert {} == nsqd.channel("..", "nsq_to_file")
