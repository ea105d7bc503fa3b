"""The promises of sparq in plain words, each with the proofs that stand for it.

`python -m proofs` puts them into GUARANTEES.md beside the last figures. A promise is changed here,
in the same commit as the code and the proof that it is about.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise.

    Attributes:
        name: as "P1".
        title: in a few words.
        text: what is promised, and under which conditions.
        proofs: the verbs that prove it, the one whose figures say most first.
    """

    name: str
    title: str
    text: str
    proofs: tuple[str, ...]


FOREWORD = """\
nsqd answers `OK` to a publish only after the message is written **and** synced to the disk
(`fdatasync`): that is `--sync-every=1`, the default. With a larger `--sync-every` an `OK` says that
the message is written: it survives the death of the process, and after a power cut the last
messages, as many as `--sync-every` and `--sync-timeout` allow, may be missing.

*Acknowledged* means: the client has read `OK`, or HTTP 200. Topics and channels whose names end in
`#ephemeral` keep nothing on disk and are exempt, by their definition."""

PROMISES = (
    Promise(
        "P1",
        "Process death",
        "An acknowledged PUB, MPUB or DPUB survives kill -9, the out-of-memory killer and a crash "
        "of nsqd, always, whatever the options of syncing.",
        ("crash", "kill", "simulate", "museum", "cluster", "mixed"),
    ),
    Promise(
        "P2",
        "Power cut",
        "With `--sync-every=1` an acknowledged message survives a power cut. With other values at "
        "most the messages of the last `--sync-timeout` or `--sync-every` are at risk, and "
        "`/stats` shows how many are not synced now. The first `OK` from a new segment comes after "
        "the file and its folder are synced.",
        ("power", "simulate"),
    ),
    Promise(
        "P3",
        "What is finished stays finished",
        "After kill -9 no message comes again whose FIN was followed by an answered command on the "
        "same connection; after a power cut at most those finished in the last sync interval. "
        "Duplicates never exceed what was in flight, plus the FINs not yet synced.",
        ("crash", "kill", "power", "model", "net", "mixed"),
    ),
    Promise(
        "P4",
        "Deferred and requeued messages",
        "They keep their due time and their attempts over restart and crash. None is delivered "
        "early, and none later than 100 ms after it is due while a consumer is ready.",
        ("simulate", "model", "clock"),
    ),
    Promise(
        "P5",
        "No silent corruption",
        "Every batch carries a checksum that is checked at recovery and at each read from disk; a "
        "damaged batch is never delivered. Damage costs just the damaged batch: those behind it "
        "are delivered, and the lost range is logged and counted in `/stats`.",
        ("bitrot", "simulate"),
    ),
    Promise(
        "P6",
        "Torn ends",
        "A log ends only where no whole batch follows. Bytes of an unfinished write behind its end "
        "are never delivered; they stay in their file as they are, and are reported with their "
        "length.",
        ("bitrot", "simulate"),
    ),
    Promise(
        "P7",
        "Full disk",
        "A publish that finds no space is refused with an error, and `/ping` says why. Consumers "
        "go on receiving and finishing: space for their FINs is set aside beforehand, and "
        "checkpoints win it back. FINs in order are kept without limit, though each is written by "
        "itself: over 200 topics on a disk of 16 MB, and in general as long as 8 KiB a topic fit "
        "into half of the disk; also where nsqd was started on a nearly full disk. FINs out of "
        "order are kept as long as the gaps between them, 16 bytes each, and the requeued "
        "messages, 20 bytes each, fit into half of the reserve (an eighth of the disk, 16 MiB at "
        "most). When space returns, publishing goes on within a second, without a restart. Topics "
        "and channels can be emptied and deleted without any space. Nothing acknowledged is lost, "
        "and nothing that was refused is stored.",
        ("full", "simulate", "museum"),
    ),
    Promise(
        "P8",
        "Failing disk",
        "After a failed sync a file is never believed again: its unsynced messages are written to "
        "a fresh segment and synced there before anything more is acknowledged. A read that fails "
        "is tried again; a page that cannot be read costs its batch, not the server. No such "
        "failure ends nsqd.",
        ("ioerror", "simulate"),
    ),
    Promise(
        "P9",
        "All or nothing",
        "After any crash all messages of an MPUB are there, or none.",
        ("crash", "kill", "power", "simulate", "mixed"),
    ),
    Promise(
        "P10",
        "Order",
        "On one channel with one consumer, first deliveries of what one connection has published "
        "come in the order of publishing.",
        ("model", "simulate"),
    ),
    Promise(
        "P11",
        "Bounded memory",
        "Memory is bounded by connections, messages in flight and deferred messages; a backlog "
        "costs none. A consumer that does not read costs at most its output buffer.",
        ("slow", "simulate", "mixed"),
    ),
    Promise(
        "P12",
        "Isolation",
        "No sequence of bytes from a client ends nsqd or raises anything but the documented "
        "errors; a client, topic or consumer that misbehaves does not stop the others.",
        ("hostile", "equal", "net", "fds"),
    ),
    Promise(
        "P13",
        "Clocks",
        "A jump of the wall clock by a day, either way, redelivers nothing, delivers nothing early "
        "and makes no two messages of one id.",
        ("clock", "simulate"),
    ),
    Promise(
        "P14",
        "Spark",
        "With the checkpointed source and an idempotent sink, whatever process of Spark or nsqd is "
        "killed or restarted, the sink holds each acknowledged message exactly once; a micro-batch "
        "that is run again has the identical partitions. Messages that are deleted before they are "
        "read fail the query, or with failOnDataLoss=false are counted in its log.",
        ("spark",),
    ),
    Promise(
        "P15",
        "Shutdown and upgrade",
        "SIGTERM loses nothing acknowledged, and redelivers at most what was in flight; it is done "
        "in 2 s with 1 GiB queued. Every released format is opened by all later versions.",
        ("term", "golden", "power"),
    ),
    Promise(
        "P16",
        "Discovery",
        "Losing one nsqlookupd, or restarting all, loses no message, and consumers find a new "
        "topic within their poll interval and a second.",
        ("net", "cluster"),
    ),
    Promise(
        "P17",
        "Age and lag",
        "With message_ttl nobody is given a message that is older, whatever is killed or "
        "restarted. A lag limit takes from a channel what is unread, and nothing that is in "
        "flight, requeued or deferred.",
        ("simulate",),
    ),
    Promise(
        "P18",
        "Dead letters",
        "With max_attempts no message is delivered more often. Each that comes back once more is "
        "kept in the dead-letter topic before it is finished, whatever is killed or restarted, and "
        "with --sync-every=1 over a power cut, too.",
        ("simulate",),
    ),
    Promise(
        "P19",
        "Leaving",
        "While nsqd drains no publish is acknowledged, and what was acknowledged before is "
        "delivered as ever. A drain that was answered holds until it is ended, whatever is killed "
        "or restarted, over a power cut, too.",
        ("simulate",),
    ),
)

NOT_PROMISED = (
    "There is no replication: a disk that dies takes its log with it.",
    "A drive that reports a flush which it has not done can break P2; nothing above it can tell.",
    "Exactly-once delivery to any consumer does not exist. Delivery is at least once; message ids "
    "are never used twice, and let a consumer drop what it has had.",
    "Order over several publishers, consumers or nsqds, and of messages that were requeued, timed "
    "out or deferred.",
)
