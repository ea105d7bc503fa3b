"""sparq's promises, each with its proofs.

`python -m proofs` writes them to GUARANTEES.md with the latest figures. Change a promise here, in
the same commit as its code and its proof.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise.

    Attributes:
        name: such as "P1".
        title: a few words.
        text: the promise and its conditions.
        proofs: the proofs that test it; the page shows the figures of the first one.
    """

    name: str
    title: str
    text: str
    proofs: tuple[str, ...]


FOREWORD = """\
With `--sync-every=1`, the default, nsqd answers a publish with `OK` only after it has written the
message **and** synced it to disk (`fdatasync`). With a larger `--sync-every`, `OK` means that the
message is written: it survives the death of the process, but a power cut may lose the latest
messages, up to the number or time that `--sync-every` and `--sync-timeout` allow.

*Acknowledged* means that the client has received `OK`, or HTTP 200. Topics and channels named
`...#ephemeral` store nothing on disk, so the promises do not cover them."""

PROMISES = (
    Promise(
        "P1",
        "Process death",
        "An acknowledged PUB, MPUB or DPUB survives kill -9, the out-of-memory killer and a crash "
        "of nsqd, with any sync options.",
        ("crash", "simulate", "cluster"),
    ),
    Promise(
        "P2",
        "Power cut",
        "With `--sync-every=1`, an acknowledged message survives a power cut. With other values, a "
        "power cut loses at most the messages of the last `--sync-every` or `--sync-timeout`; "
        "`/stats` shows how many messages are not synced yet. The first `OK` from a new segment "
        "is sent after the file and its folder are synced.",
        ("power", "simulate"),
    ),
    Promise(
        "P3",
        "Finished messages stay finished",
        "After kill -9, a message is not delivered again if its FIN was followed by an answered "
        "command on the same connection. After a power cut, at most the messages finished in the "
        "last sync interval are delivered again. Duplicates never exceed the messages in flight "
        "plus the FINs that were not synced. The only exception: while the disk refuses every "
        "write to a ledger, for another reason than lack of space or after the reserve is used up "
        "(`/ping` gives the reason), FINs are kept in memory alone and answers do not wait. They "
        "are written as soon as the disk accepts them; if nsqd is killed before, these messages "
        "are delivered again.",
        ("crash", "power", "simulate"),
    ),
    Promise(
        "P4",
        "Deferred and requeued messages",
        "They keep their due time and their attempts over restarts and crashes. None is delivered "
        "early, and none more than 100 ms late while a consumer is ready.",
        ("simulate", "mixed"),
    ),
    Promise(
        "P5",
        "No silent corruption",
        "Every batch has a checksum, which nsqd checks at recovery and at each read from disk. A "
        "damaged batch is never delivered. Damage loses only the damaged batch: later batches "
        "are delivered, and the lost range is logged and counted in `/stats`.",
        ("bitrot", "simulate"),
    ),
    Promise(
        "P6",
        "Unfinished writes",
        "nsqd takes a place for the end of a log only if no complete batch follows it. It never "
        "delivers the bytes of an unfinished write after that end; they stay in their file "
        "unchanged, and their length is reported.",
        ("bitrot", "simulate"),
    ),
    Promise(
        "P7",
        "Full disk",
        "A publish that finds no space is refused with an error, and `/ping` gives the reason. "
        "Consumers still receive and finish messages: nsqd reserves space for their FINs in "
        "advance, and checkpoints free that space again. FINs in order are stored without limit, "
        "even if each is written separately, as long as 8 KiB per topic fit into half of the disk "
        "(for example 200 topics on a disk of 16 MB), and also if nsqd was started on a nearly "
        "full disk. FINs out of order are stored as long as the gaps between them (16 bytes each) "
        "and the requeued messages (20 bytes each) fit into half of the reserve, which is an "
        "eighth of the disk, at most 16 MiB. When space is available again, publishing resumes "
        "within a second, without a restart. Emptying and deleting topics and channels needs no "
        "space. This includes a quota of btrfs that refuses to write, rename and truncate and "
        "allows only deleting. No acknowledged message is lost, and no refused message is stored.",
        ("full", "simulate", "crash"),
    ),
    Promise(
        "P8",
        "Failing disk",
        "After a failed sync, nsqd does not trust the file any more: it writes the unsynced "
        "messages to a new segment and syncs them there before it acknowledges anything else. A "
        "failed read is retried; a page that cannot be read loses its batch only. None of these "
        "failures stops nsqd, and `/ping` reports them until the same operation works again. A "
        "refused message is delivered in one case only: it was written, its sync failed, and the "
        "disk then refused every change, so that it could not be removed, until nsqd was killed.",
        ("crash", "simulate"),
    ),
    Promise(
        "P9",
        "All or nothing",
        "After any crash, either all messages of an MPUB are stored, or none.",
        ("crash", "power", "simulate"),
    ),
    Promise(
        "P10",
        "Order",
        "On a channel with one consumer, the first deliveries of the messages from one connection "
        "are in the order in which it published them.",
        ("simulate",),
    ),
    Promise(
        "P11",
        "Bounded memory",
        "Memory use depends on the number of connections, messages in flight and deferred "
        "messages, but not on the backlog. A consumer that does not read uses at most its output "
        "buffer.",
        ("slow", "simulate", "mixed"),
    ),
    Promise(
        "P12",
        "Isolation",
        "No sequence of bytes from a client stops nsqd or raises an undocumented error. A client, "
        "topic or consumer that misbehaves does not stop the others.",
        ("hostile", "slow"),
    ),
    Promise(
        "P13",
        "Clocks",
        "A jump of the wall clock by a day, forward or back, causes no redelivery, no early "
        "delivery and no repeated message id.",
        ("simulate",),
    ),
    Promise(
        "P14",
        "Spark",
        "With the checkpointed source and an idempotent sink, the sink has each acknowledged "
        "message exactly once, whichever process of Spark or nsqd is killed or restarted. A "
        "micro-batch that runs again has identical partitions. If messages are deleted before "
        "they are read, the query fails; with `failOnDataLoss=false` it logs their number.",
        ("spark",),
    ),
    Promise(
        "P15",
        "Shutdown and upgrade",
        "SIGTERM loses no acknowledged message and redelivers at most the messages in flight. "
        "Shutdown takes at most 2 s with 1 GiB queued. All later versions open every released "
        "format.",
        ("slow", "crash", "golden", "power"),
    ),
    Promise(
        "P16",
        "Discovery",
        "If one nsqlookupd fails, or all restart, no message is lost, and consumers find a new "
        "topic within their poll interval plus one second.",
        ("cluster",),
    ),
    Promise(
        "P17",
        "Age and lag",
        "With `message_ttl`, no consumer receives an older message, whichever process is killed or "
        "restarted. A lag limit drops only unread messages of a channel, never messages in "
        "flight, requeued or deferred.",
        ("simulate",),
    ),
    Promise(
        "P18",
        "Dead letters",
        "With `max_attempts`, no message is delivered more often. A message that returns after "
        "its last attempt is stored in the dead-letter topic before it is finished, whichever "
        "process is killed or restarted; with `--sync-every=1` also over a power cut.",
        ("simulate",),
    ),
    Promise(
        "P19",
        "Draining",
        "While nsqd drains, it acknowledges no publish, and delivers the messages acknowledged "
        "earlier as usual. An answered drain request holds until the drain is ended, over kills, "
        "restarts and power cuts.",
        ("simulate",),
    ),
    Promise(
        "P20",
        "Operating",
        "With a token file, a request that its token does not allow (docs/access.md) has no "
        "effect; `make security` tries each with each role. Neither has any request with a token "
        "that was removed, once the daemon has read its file again. A topic that was deleted, "
        "tombstoned or moved away does not come back because of sparq's consumers that find it "
        "through nsqlookupd. While nothing changes, nsqadmin, `sparq top` and `sparq admin list` "
        "show exactly what was published, delivered and requeued.",
        ("operator_day",),
    ),
)

NOT_PROMISED = (
    "Replication: if a disk fails, its log is lost.",
    "Power safety on a drive that reports a flush it has not done: it can break P2, and software "
    "cannot detect this.",
    "Exactly-once delivery to any consumer. Delivery is at least once. A topic's message ids "
    "are never used twice, so a consumer can recognise and drop duplicates; messages of two topics "
    "can have the same id.",
    "Order across several publishers, consumers or nsqds, and order of messages that were "
    "requeued, timed out or deferred.",
)
