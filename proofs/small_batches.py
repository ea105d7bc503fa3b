"""`sparq run` with micro-batches so small that a run of a minute has dozens of them to be killed.

As `run ...` it is `sparq run` with the application below; with other words it is that application.
"""

import sys

from sparq import cli
from sparq.pipeline import command
from sparq.pipeline import main as pipeline

MESSAGES = 6_000


def main(words: list[str], module: str = "proofs.small_batches") -> int:
    """The run, whose application is `module`; or the application."""
    if words[0] == "run":
        setattr(pipeline, "APPLICATION", module)  # noqa: B010 - a replacement
        return cli.main(words)
    return command.main([*words, f"--max-offsets-per-trigger={MESSAGES}"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
