"""Clicks as `pack` reads them, of messages as `sparq.pipeline.clicks.parse_arrow` reads them.

What is the same for many clicks (a page, a visitor) is worked out once for each text.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline.open_visits.kinds import kinds_of
from sparq.pipeline.open_visits.pack import CLICKS
from sparq.pipeline.open_visits.rows import Ints
from sparq.pipeline.text_hashes import hashes_of

# What `prepared` needs of a parsed message, beside nsqd, id, timestamp and batch_ms.
PARSED_COLUMNS = ("time", "address", "page", "user_agent", "reason")
TEXT_CHARACTERS_MAX = 400  # of a user agent or a page: a finding must fit into a message
MICROSECONDS = 1_000_000


def prepared(messages: pa.Table) -> pa.Table:
    """The readable clicks of a table of messages, as CLICKS.

    Args:
        messages: columns nsqd STRING, id STRING, timestamp TIMESTAMP (when it was published),
            batch_ms BIGINT (see `packing.PACKED_SCHEMA`) and those of PARSED_COLUMNS.
    """
    clicks = messages.filter(pc.is_null(messages["reason"])).combine_chunks()
    agents = pc.fill_null(clicks["user_agent"].combine_chunks(), "-")
    agents = pc.utf8_slice_codeunits(agents, 0, TEXT_CHARACTERS_MAX)
    addresses = clicks["address"].combine_chunks()
    visitors = pc.binary_join_element_wise(addresses, agents, "\n").dictionary_encode()
    pages = clicks["page"].combine_chunks().dictionary_encode()
    kinds = kinds_of(pages.dictionary)
    texts = pc.utf8_slice_codeunits(pages.dictionary, 0, TEXT_CHARACTERS_MAX)
    texts = pa.concat_arrays([texts, pa.array(["-"], pa.string())])  # the broken requests'
    page = pc.fill_null(pages.indices, len(texts) - 1).to_numpy()
    kinds = np.append(kinds, kinds_of(pa.nulls(1, pa.string())))
    second, published_s = _seconds(clicks["time"]), _seconds(clicks["timestamp"])
    columns = [
        pa.array(hashes_of(visitors.dictionary)[visitors.indices.to_numpy()]),
        addresses,
        agents,
        pa.array(second),
        pa.array(kinds[page]),
        texts.take(pa.array(page)),
        pa.array(hashes_of(texts)[page]),
        clicks["id"].combine_chunks(),
        clicks["nsqd"].combine_chunks(),
        pa.array(np.minimum(second, published_s)),
        pa.array(published_s),
        clicks["batch_ms"].combine_chunks(),
    ]
    return pa.Table.from_arrays(columns, schema=CLICKS)


def _seconds(times: pa.ChunkedArray) -> Ints:
    seconds: Ints = times.cast(pa.int64()).to_numpy() // MICROSECONDS
    return seconds
