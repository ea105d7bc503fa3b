"""`sparq run` with micro-batches so small that a run of a minute has dozens of them to be killed.

As `run ...` it is `sparq run` with the application below; with other words it is that application.
"""

import sys

from sparq import cli
from sparq.pipeline import command
from sparq.pipeline import main as pipeline

MESSAGES = 6_000
# The archive, too: with its own sizes it has one batch in such a run, and no kill comes to it.
FLAGS = (
    f"--max-offsets-per-trigger={MESSAGES}",
    "--archive-min-offsets=0",
    f"--archive-max-offsets={MESSAGES}",
)


def main(words: list[str], module: str = "proofs.small_batches") -> int:
    """The run, whose application is `module`; or the application."""
    if words[0] == "run":
        setattr(pipeline, "APPLICATION", module)  # noqa: B010 - a replacement
        return cli.main(words)
    return command.main([*words, *FLAGS])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
