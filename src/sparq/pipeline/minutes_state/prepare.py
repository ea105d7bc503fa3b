"""Messages as `packer` takes them, of messages as `sparq.pipeline.clicks.parse_arrow` reads them.

What is the same for many clicks (a page, a visitor) is worked out once for each text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline.minutes_state.output import REJECTED_SCHEMA
from sparq.pipeline.text_hashes import hashes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

# What `prepared` needs of a parsed message, beside nsqd, id, index, timestamp, body and batch_ms.
PARSED_COLUMNS = ("time", "address", "page", "status", "bytes", "user_agent", "reason")
MICROSECONDS = 1_000_000
REJECTED_TYPE = pa.struct(list(REJECTED_SCHEMA))
PREPARED = pa.schema(
    [
        ("minute", pa.int64()),  # event time, minutes since 1970; null if the message is rejected
        ("visitor", pa.int64()),  # hash of address and user agent
        ("page", pa.string()),  # null where the request names none
        ("page_hash", pa.int64()),  # 0 where there is no page
        ("bytes", pa.int64()),
        ("status", pa.int32()),  # null where the log has "-"
        # What `packing.header_of` reads.
        ("nsqd", pa.string()),
        ("newest_s", pa.int64()),
        ("published_s", pa.int64()),
        ("batch_ms", pa.int64()),
        ("rejected", REJECTED_TYPE),  # the whole message; null if it is a click
    ]
)


def prepared(messages: pa.Table) -> pa.Table:
    """A table of messages as PREPARED, a row for each.

    Args:
        messages: columns nsqd STRING, id STRING, index BIGINT, timestamp TIMESTAMP (when it was
            published), body BINARY, batch_ms BIGINT (see `packing.PACKED_SCHEMA`) and those of
            PARSED_COLUMNS.
    """
    messages = messages.combine_chunks()
    is_click = pc.is_null(messages["reason"]).combine_chunks()
    agents = pc.fill_null(messages["user_agent"].combine_chunks(), "-")
    addresses = messages["address"].combine_chunks()
    visitors = pc.binary_join_element_wise(addresses, agents, "\n").dictionary_encode()
    pages = messages["page"].combine_chunks().dictionary_encode()
    second = _seconds(messages["time"])
    published_s = _seconds(messages["timestamp"])
    columns = [
        pc.if_else(is_click, pc.divide(second, 60), None),
        _looked_up(hashes_of(visitors.dictionary), visitors.indices),
        messages["page"],
        _looked_up(hashes_of(pages.dictionary), pages.indices).fill_null(0),
        messages["bytes"],
        messages["status"],
        messages["nsqd"],
        # Of a rejected message there is no event time: its publish time must not pass for one.
        pc.if_else(is_click, pc.min_element_wise(second, published_s, skip_nulls=False), None),
        published_s,
        messages["batch_ms"],
        _rejected(messages, is_click),
    ]
    return pa.table(dict(zip(PREPARED.names, columns, strict=True)), schema=PREPARED)


def _seconds(times: pa.ChunkedArray) -> pa.Int64Array:
    """Whole seconds since 1970, rounded down; null where the time is."""
    micros = times.combine_chunks().cast(pa.int64())
    known = micros.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(micros.fill_null(0).to_numpy() // MICROSECONDS, mask=~known)


def _looked_up(values: Numbers, indices: pa.Array) -> pa.Int64Array:
    return pa.array(values).take(indices)


def _rejected(messages: pa.Table, is_click: pa.BooleanArray) -> pa.Array:
    if is_click.true_count == len(is_click):
        return pa.nulls(len(is_click), REJECTED_TYPE)
    kept = messages.select(REJECTED_SCHEMA.names).cast(REJECTED_SCHEMA)
    whole = [pc.if_else(is_click, None, kept[name].combine_chunks()) for name in kept.column_names]
    return pa.StructArray.from_arrays(whole, fields=list(REJECTED_SCHEMA), mask=is_click)
