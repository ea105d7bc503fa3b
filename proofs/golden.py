"""Opens data paths that earlier versions have written: `make golden`.

tests/golden has a folder for each version with a new format. It contains packed data paths, and a
document with the visible content of each when it was written. This version must read the same: ids,
attempts, timestamps, bodies, due times, pauses and damage. Then each topic must accept messages.

The control is a reader that knows only a newer format: it must read none of them correctly.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path

from proofs import outcome
from proofs.golden_read import Document, attempts_of, describe
from proofs.golden_write import GOLDEN
from proofs.outcome import Outcome, Plan, skipped
from proofs.reopened import replaced
from sparq.log import segment

PROMISES = ("P15",)

VERSION_AT = 10
"""Offset of the version in a header, after the magic and the size."""


def packs() -> list[Path]:
    """Return the packed data paths."""
    return sorted(GOLDEN.glob("*/*.tar.xz"))


def newer(kind: bytes) -> bytes:
    """Return the beginning of a header of the next version."""
    return kind[:VERSION_AT] + bytes([kind[VERSION_AT] + 1]) + kind[VERSION_AT + 1 :]


def unpack(pack: Path, folder: Path) -> Path:
    """Unpack a data path and return its folder."""
    data = folder / pack.parent.name / pack.name.removesuffix(".tar.xz")
    with tarfile.open(pack) as packed:
        for member in packed:
            path = data / member.name
            if member.isdir():
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            elif content := packed.extractfile(member):
                path.write_bytes(content.read())
    return data


def difference(pack: Path, folder: Path) -> str:
    """Describe the differences from the recorded content; empty if there are none."""
    document = pack.with_name(pack.name.removesuffix(".tar.xz") + ".json")
    expected = in_promised_order(json.loads(document.read_text(encoding="utf-8")))
    found = in_promised_order(json.loads(json.dumps(describe(unpack(pack, folder)))))
    return "; ".join(differences(expected, found, pack.parent.name + "/" + pack.name))


def in_promised_order(document: Document) -> Document:
    """Keep the order of each channel's first deliveries, and sort the repeated ones.

    P10 promises the order of first deliveries. The order of the others depends on which messages
    are in memory when they are sent: a version may read more at a time than the one before.
    """
    for topic in document["topics"].values():
        for channel in topic["channels"].values():
            lines = channel.pop("delivered")
            channel["delivered first"] = [line for line in lines if attempts_of(line) == 1]
            channel["delivered again"] = sorted(line for line in lines if attempts_of(line) > 1)
    return document


def differences(expected: object, found: object, at: str) -> list[str]:
    """Describe the places in which two documents differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = sorted(expected.keys() | found.keys())
        return [
            text
            for key in keys
            for text in differences(expected.get(key), found.get(key), f"{at} > {key}")
        ]
    return [] if expected == found else [f"{at}: was {expected!r:.300}, is {found!r:.300}"]


def messages(pack: Path) -> int:
    """Return the number of messages in the pack's logs."""
    document = pack.with_name(pack.name.removesuffix(".tar.xz") + ".json")
    topics = json.loads(document.read_text(encoding="utf-8"))["topics"].values()
    return sum(len(topic["replayed"]) for topic in topics)


def prove(plan: Plan) -> Outcome:
    """Run the proof and its control; all packs are opened, whatever the plan's count."""
    found = packs()
    if not found:
        return skipped(PROMISES, "needs tests/golden")
    with tempfile.TemporaryDirectory(prefix="sparq-golden-") as folder:
        wrong = [text for pack in found if (text := difference(pack, Path(folder)))]
    for text in wrong:
        print(f"  {text}")
    versions = {pack.parent.name for pack in found}
    figures = (
        f"formats {len(versions)} ({', '.join(sorted(versions))}) · data paths {len(found)} · "
        f"opened and equal {len(found) - len(wrong)} · messages {sum(map(messages, found)):,}"
    )
    held, control = not wrong, ""
    if plan.control:
        with (
            tempfile.TemporaryDirectory(prefix="sparq-golden-") as folder,
            replaced(segment.HEADER, "kind", newer(segment.HEADER.kind)),
        ):
            equal = sum(not difference(pack, Path(folder)) for pack in found)
        control = f"with a reader of a newer format only: equal {equal} of {len(found)}"
        held = held and not equal
    return Outcome(PROMISES, figures, held, control)


if __name__ == "__main__":
    sys.exit(outcome.run("golden", prove, count=1, of="nothing: all of them are opened"))
