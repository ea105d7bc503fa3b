"""Spark 4.3's progress: recorded from real queries, and generated in the same form.

`progress.json` has the progress of two queries over two nsqds with 700 and 300 messages, at most
400 per batch: `plain` wrote rows to Parquet and observed their publish times; `stateful` kept
counts in RocksDB, with a watermark and an observed sum.
"""

import copy
import json
from pathlib import Path

RECORDED = Path(__file__).with_name("progress.json")
FIRST, SECOND = "127.0.0.1:4150/aa", "127.0.0.1:4250/bb"
QUERY_ID = "00000000-0000-0000-0000-000000000001"
RUN_ID = "00000000-0000-0000-0000-0000000000ff"

STATE = {
    "operatorName": "transformWithStateInPandasExec",
    "numRowsTotal": 48,
    "numRowsUpdated": 32,
    "allUpdatesTimeMs": 10,
    "numRowsRemoved": 3,
    "allRemovalsTimeMs": 0,
    "commitTimeMs": 250,
    "memoryUsedBytes": 1_000_000,
    "numRowsDroppedByWatermark": 2,
    "numShufflePartitions": 2,
    "numStateStoreInstances": 2,
    "customMetrics": {"rocksdbSstFileSize": 4_000_000, "rocksdbGetCount": 12},
}


def recorded():
    """By query name, all progress in the order in which it was reported."""
    found = {}
    for one in json.loads(RECORDED.read_text(encoding="utf-8")):
        found.setdefault(one["name"], []).append(one)
    return found


def place(ordinal, index=None, **more):
    """The position of a log in an offset; indexes have gaps, ordinals do not."""
    return {"index": 7 * ordinal if index is None else index, "ordinal": ordinal, **more}


def progress(batch_id=3, end=None, latest=None, rows=400, **more):
    """The progress of one batch of 2 s that ended at 12:00:02 UTC."""
    end = {FIRST: place(500), SECOND: place(300)} if end is None else end
    latest = {FIRST: place(900), SECOND: place(450)} if latest is None else latest
    return copy.deepcopy(
        {
            "id": QUERY_ID,
            "runId": RUN_ID,
            "name": "metrics",
            "timestamp": "2026-11-22T12:00:00.000Z",
            "batchId": batch_id,
            "batchDuration": 2_000,
            "numInputRows": rows,
            "inputRowsPerSecond": 100.0,
            "processedRowsPerSecond": rows / 2,
            "durationMs": {
                "addBatch": 1_500,
                "latestOffset": 10,
                "queryPlanning": 200,
                "triggerExecution": 2_000,
                "walCommit": 90,
            },
            "stateOperators": [],
            "sources": [
                {
                    "description": "nsq",
                    "startOffset": {FIRST: place(100)},
                    "endOffset": {**end, "cut": {"parts": 2, "records_max": 1_000_000}},
                    "latestOffset": latest,
                    "numInputRows": rows,
                }
            ],
            "sink": {"description": "ForeachBatchSink", "numOutputRows": -1},
            "observedMetrics": {},
            **more,
        }
    )
