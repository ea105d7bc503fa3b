"""Spark 4.3's progress of a batch; `test_monitor` compares its keys with those of real queries."""

import copy
import json
from types import SimpleNamespace

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


def place(ordinal, index=None, **more):
    """The position of a log in an offset; indexes have gaps, ordinals do not."""
    return {"index": 7 * ordinal if index is None else index, "ordinal": ordinal, **more}


def progress(query_id=QUERY_ID, batch_id=3, end=None, latest=None, rows=400, **more):
    """The progress of one batch of 2 s that ended at 12:00:02 UTC."""
    end = {FIRST: place(500), SECOND: place(300)} if end is None else end
    latest = {FIRST: place(900), SECOND: place(450)} if latest is None else latest
    return copy.deepcopy(
        {
            "id": query_id,
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


def event(**fields):
    """An event as Spark's JVM hands it to a listener."""
    return SimpleNamespace(json=lambda: json.dumps(fields))
