"""The layout of a frame, and the modules that must load without numpy."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest

from sparq.protocol import layout

EXITS_1_IF_NUMPY_IS_LOADED = (
    "import sys; import sparq.protocol.{}; sys.exit('numpy' in sys.modules)"
)


def test_offsets_follow_from_the_sizes_of_the_fields() -> None:
    """Each offset follows from the sizes of the fields before it."""
    assert struct.calcsize(">ii") == layout.FRAME_HEADER_SIZE
    assert layout.FRAME_HEADER_SIZE + struct.calcsize(">q") == layout.ATTEMPTS_OFFSET
    assert layout.ATTEMPTS_OFFSET + struct.calcsize(">H") == layout.ID_OFFSET
    assert layout.ID_OFFSET + layout.ID_SIZE == layout.FRAME_OVERHEAD
    assert layout.FRAME_OVERHEAD - layout.FRAME_HEADER_SIZE == layout.MESSAGE_HEADER_SIZE


@pytest.mark.parametrize(
    "module",
    [
        *("commands", "compression", "errors", "identify", "instant"),
        *("layout", "names", "receiver"),
    ],
)
def test_the_modules_of_a_client_do_not_load_numpy(module: str) -> None:
    """The modules that a client needs do not load numpy, which saves 0.1 s at start."""
    done = subprocess.run(
        [sys.executable, "-c", EXITS_1_IF_NUMPY_IS_LOADED.format(module)], check=False
    )

    assert 0 == done.returncode
