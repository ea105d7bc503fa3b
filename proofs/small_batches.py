"""`sparq run` with very small micro-batches: a run of a minute has dozens that can be killed.

If the first word is `run`, it is `sparq run` with this module as its application; otherwise it is
that application.
"""

import sys

from sparq import cli
from sparq.pipeline import command
from sparq.pipeline.run import processes

MESSAGES = 6_000
FLAGS = (f"--max-offsets-per-trigger={MESSAGES}",)


def main(words: list[str], module: str = "proofs.small_batches") -> int:
    """Run `sparq run` with `module` as its application, or the application itself."""
    if words[0] == "run":
        setattr(processes, "APPLICATION", module)  # noqa: B010 - a replacement
        return cli.main(words)
    return command.main([*words, *FLAGS])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
