"""nsqd that may import nothing after SIGUSR1: what it tries is recorded, and refused.

A module that is loaded at the moment of need cannot be opened when files cannot: without
descriptors, or on a failing disk.
"""

import os
import signal
import sys

from sparq.nsqd import main

_record: list[int] = []


def refuse_import(event: str, arguments: tuple[object, ...]) -> None:
    """Refuse an import, and record the module's name; an audit hook."""
    # The start may still be loading what is rarely used.
    if event == "import" and _record and all(name in sys.modules for name in main.RARELY_USED):
        os.write(_record[0], f"{arguments[0]}\n".encode())
        raise ImportError(f"{arguments[0]} was not loaded at the start")


if __name__ == "__main__":
    record = os.open(os.environ["SEALED_RECORD"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    signal.signal(signal.SIGUSR1, lambda _number, _frame: _record.append(record))
    sys.addaudithook(refuse_import)
    sys.exit(main.main())
