"""Fuzzes one target with libFuzzer: `python -m proofs.hostile_parts.fuzz_process`, a process.

Needs atheris on the path, see guided.py. Arguments: name of the target, number of executions, seed,
and a folder for the corpus. libFuzzer reports the first exception and ends the process.
"""

import sys
from pathlib import Path

import atheris  # type: ignore[import-untyped]  # installed by guided.py, if at all

from proofs.hostile_parts.mutate import HEAD_SIZE

INPUT_BYTES_MAX = 20_000


def _entry(word: bytes) -> str:
    """A word as a line of libFuzzer's dictionary."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n'


def main() -> None:
    """Fuzz. libFuzzer ends the process, so this does not return."""
    name, count, seed, folder = sys.argv[1:]
    with atheris.instrument_imports(include=["sparq.protocol", "sparq.broker", "sparq.nsqd.http"]):
        from proofs.hostile_parts import parser_targets
    (target,) = [target for target in parser_targets.targets() if target.name == name]
    for number, data in enumerate(target.corpus):
        (Path(folder) / str(number)).write_bytes(bytes(HEAD_SIZE) + data)
    options = [f"-runs={count}", f"-seed={seed}", f"-max_len={INPUT_BYTES_MAX}", "-timeout=5"]
    if target.words:  # libFuzzer takes no empty dictionary
        words = Path(folder).with_suffix(".dict")
        words.write_text("".join(map(_entry, target.words)))
        options.append(f"-dict={words}")

    def one(data: bytes) -> None:
        target.run(data)

    atheris.Setup([sys.argv[0], *options, folder], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
