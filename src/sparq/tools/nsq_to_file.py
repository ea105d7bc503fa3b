"""The program `nsq_to_file`: writes topics to files, a message a line, and rotates and packs them.

It has the flags of NSQ's `nsq_to_file`, and differs from it where that loses or mixes up messages:

1. A message is finished when its bytes, and the name of the file that has them, are on the disk;
   none is finished unseen for having been delivered often, unless `--consumer-opt=max_attempts,N`
   asks for it. A kill can leave messages there twice, and one of them torn: in a line of its own,
   or in the last member of a gzip file.
2. No file lies outside `--output-dir` or `--work-dir`, whatever the topics and the other flags say,
   and no symbolic link below them is followed.
3. What a killed run has left in `--work-dir` is moved to `--output-dir` at the next start; so it is
   for sparq's `nsq_to_file` alone, of any number of processes.
4. With `--topic-pattern` the topics are looked for at once, and then every `--topic-refresh`.

SIGHUP: sync, finish and leave the files. SIGINT and SIGTERM: the same, then exit status 0. A file
that cannot be written ends the program with status 1.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import Final

from sparq.client.config import Config
from sparq.client.consumer import Consumer
from sparq.program.logging import set_up
from sparq.protocol.durations import SECOND
from sparq.protocol.names import quote
from sparq.protocol.patterns import Pattern, PatternError
from sparq.tools import common
from sparq.tools.archive import Archive
from sparq.tools.command_line import UsageError, refuse
from sparq.tools.commands.nsq_to_file import PROGRAM, Options, main
from sparq.tools.filename import FilenameError, template
from sparq.tools.folder import Folder
from sparq.tools.output import Output, Rotation
from sparq.tools.recorder import Recorder
from sparq.tools.topics import Topics

log = logging.getLogger(__name__)


POSITIVE: Final = {
    "topic-refresh": "topic_refresh_ns",
    "sync-interval": "sync_interval_ns",
    "http-client-connect-timeout": "http_client_connect_timeout_ns",
    "http-client-request-timeout": "http_client_request_timeout_ns",
}
NOT_NEGATIVE: Final = {"rotate-size": "rotate_size", "rotate-interval": "rotate_interval_ns"}


def start(options: Options) -> int:
    """Run the program; the exit status."""
    try:
        check(options)
        set_up(options.log_prefix, options.log_level)
        archive = archive_of(options)
    except UsageError as error:
        refuse(PROGRAM, str(error))
    except FilenameError as error:
        refuse(PROGRAM, f"--filename-format: {error}")

    async def work(stop: asyncio.Event) -> int:
        set_up(options.log_prefix, options.log_level)
        return await archive.run(stop)

    return common.run(PROGRAM, work, (signal.SIGINT, signal.SIGTERM))


def check(options: Options) -> None:
    """Hold the options to what can be done.

    Raises:
        UsageError: the text names the flag.
    """
    if not options.channel:
        raise UsageError("--channel is required")
    common.check_sources(options.nsqd_tcp_addresses, options.lookupd_http_addresses)
    for flag, field in POSITIVE.items():
        if getattr(options, field) <= 0:
            raise UsageError(f"--{flag} should be positive")
    for flag, field in NOT_NEGATIVE.items():
        if getattr(options, field) < 0:
            raise UsageError(f"--{flag} should not be negative")
    if not 1 <= options.gzip_level <= 9:
        raise UsageError(f"invalid --gzip-level value ({options.gzip_level}), should be 1-9")
    if not options.topics and not options.topic_pattern:
        raise UsageError("--topic or --topic-pattern required")
    if not options.topics and not options.lookupd_http_addresses:
        raise UsageError("--lookupd-http-address must be specified when no --topic specified")
    common.check_names(options.topics, options.channel)


def archive_of(options: Options) -> Archive:
    """What the options ask for, ready to run.

    Raises:
        UsageError: it cannot be made; the text names the flag.
        FilenameError: a topic can have no file.
    """
    config = common.consumer_config(PROGRAM, options, options.max_in_flight)
    pattern = _pattern(options)
    topics = [topic for topic in dict.fromkeys(options.topics) if pattern.search(topic)]
    if options.topics and not topics:
        raise UsageError("--topic-pattern matches no --topic")
    if left_out := [topic for topic in options.topics if topic not in topics]:
        log.warning("skipping topics that the pattern does not match: %s", ", ".join(left_out))
    work, finished = _folders(options)
    return Archive(
        topics,
        None if topics else _topics(options, pattern, config),
        options.topic_refresh_ns / SECOND,
        lambda topic: recorder_of(topic, options, config, work, finished),
    )


def recorder_of(
    topic: str, options: Options, config: Config, work: Folder, finished: Folder | None
) -> Recorder:
    """A topic's recorder.

    Args:
        topic: a legal name.
        options: checked.
        config: the client's options.
        work: where files are written.
        finished: where they go then; None: they stay.
    Raises:
        FilenameError: it can have no file.
    """
    rotation = Rotation(options.rotate_size, options.rotate_interval_ns)
    made = template(
        options.filename_format,
        options.datetime_format,
        topic,
        options.host_identifier,
        is_revised=options.gzip or any((rotation.size, rotation.interval_ns, finished)),
        is_gzip=options.gzip,
    )
    consumer = Consumer(
        topic,
        options.channel,
        nsqd_tcp_addresses=options.nsqd_tcp_addresses,
        lookupd_http_addresses=options.lookupd_http_addresses,
        config=config,
    )
    output = Output(
        made,
        work,
        finished,
        rotation,
        gzip_level=options.gzip_level if options.gzip else 0,
        label=f"[{topic}/{options.channel}]",
    )
    return Recorder(
        consumer,
        output,
        sync_interval=options.sync_interval_ns / SECOND,
        skip_empty_files=options.skip_empty_files,
    )


def _pattern(options: Options) -> Pattern:
    try:
        return Pattern(options.topic_pattern)
    except PatternError as error:
        raise UsageError(f"--topic-pattern {quote(options.topic_pattern)}: {error}") from None


def _folders(options: Options) -> tuple[Folder, Folder | None]:
    """Where files are written, and where they go then, if that is somewhere else."""
    folder = _folder("output-dir", options.output_dir)
    if not options.work_dir or os.path.realpath(options.work_dir) == folder.path:
        return folder, None
    return _folder("work-dir", options.work_dir, is_owned=True), folder


def _folder(flag: str, path: str, *, is_owned: bool = False) -> Folder:
    try:
        return Folder(path, is_owned=is_owned)
    except OSError as error:
        raise UsageError(f"--{flag} {quote(path)}: {_reason(error)}") from None
    except ValueError as error:
        raise UsageError(f"--{flag} {quote(path)}: {error}") from None


def _reason(error: OSError) -> str:
    """Why a folder cannot be used: what the system says, and what else is known."""
    if not error.errno:
        return str(error)
    reason = os.strerror(error.errno)
    more = "" if error.strerror in (None, reason) else f": {error.strerror}"
    return f"{reason.lower()}{more}"


def _topics(options: Options, pattern: Pattern, config: Config) -> Topics:
    return Topics(
        options.lookupd_http_addresses,
        pattern,
        config,
        connect_seconds=options.http_client_connect_timeout_ns / SECOND,
        request_seconds=options.http_client_request_timeout_ns / SECOND,
    )


if __name__ == "__main__":
    sys.exit(main())
