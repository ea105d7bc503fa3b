"""The JSON files of a data path that requests change: `policies.json` and `drain.json`.

What they hold keeps messages from deletion or refuses publishes, so a flipped bit must be detected:
a file carries a checksum, XXH3-64 with seed 0 over the JSON text of its contents.
"""

from __future__ import annotations

import json
from typing import Any, Final, TypeVar

import msgspec
from xxhash import xxh3_64_hexdigest

FORMAT: Final = 1

T = TypeVar("T")


def encode(name: str, contents: Any) -> bytes:
    """The text of a file whose contents have this name in it."""
    plain = msgspec.to_builtins(contents)
    document = {"format": FORMAT, "checksum": _checksum(plain), name: plain}
    return json.dumps(document, indent=1).encode() + b"\n"


def decode(name: str, text: bytes, form: type[T]) -> T:
    """Read the contents; raises ValueError: the file is damaged, or of a later format."""
    try:
        document = json.loads(text)
        version, contents, checksum = document["format"], document[name], document["checksum"]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if version != FORMAT:
        raise ValueError(f"it has format {version}, but this version reads format {FORMAT}")
    if checksum != _checksum(contents):
        raise ValueError("checksum mismatch")
    # Not strict: earlier versions wrote 64-bit numbers as text.
    return msgspec.convert(contents, form, strict=False)


def _checksum(contents: Any) -> str:
    return xxh3_64_hexdigest(json.dumps(contents, sort_keys=True, separators=(",", ":")).encode())
