"""64 bits of texts, as state and buckets know visitors and pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash

if TYPE_CHECKING:
    from numpy.typing import NDArray


def hashes_of(texts: pa.Array) -> NDArray[np.int64]:
    """The hash of each text; equal in all processes and versions.

    Args:
        texts: strings, none of them null. Give each text once, such as the dictionary of a
            dictionary-encoded column: hashing goes text by text.
    """
    digests = [xxhash.xxh3_64_intdigest(text.encode()) for text in texts.to_pylist()]
    return np.array(digests, np.uint64).view(np.int64)
