"""Progress on a terminal: one line that is rewritten; elsewhere a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TextIO

REWRITE_SECONDS = 0.25
REPEAT_SECONDS = 5.0
WIDTH = 100


class Progress:
    """Says how far a run has come."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rewrites = stream.isatty()
        self._began = self._said = time.monotonic()
        self._stage = ""

    def show(
        self,
        stage: str,
        published: int,
        total: int,
        rows: Mapping[str, int],
        depths: Mapping[str, int] | None,
    ) -> None:
        """Say it, but not too often."""
        now = time.monotonic()
        pause = REWRITE_SECONDS if self._rewrites else REPEAT_SECONDS
        if now - self._said < pause and stage == self._stage:
            return
        self._said, self._stage = now, stage
        of = f" of {total:,}" if total else ""
        parts = [f"published {published:,}{of}"]
        parts += [f"{name} {count:,}" for name, count in rows.items()]
        if depths is not None:
            parts.append(f"waiting {sum(depths.values()):,}")
        self._write(f"[{now - self._began:5.1f} s] {stage}: " + " | ".join(parts))

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        self._stream.write(f"[{time.monotonic() - self._began:5.1f} s] {text}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Take the rewritten line away."""
        if self._rewrites:
            self._stream.write("\r" + " " * WIDTH + "\r")
            self._stream.flush()

    def _write(self, line: str) -> None:
        self._stream.write(f"\r{line[:WIDTH]:<{WIDTH}}" if self._rewrites else line + "\n")
        self._stream.flush()
