"""Array modules without a pair in `twins`, and the test that compares each with plain code."""

ELSEWHERE = {
    "broker.last_deliveries": "tests/broker/test_last_deliveries.py",
    "broker.channel": "tests/broker/test_channel.py",
    "broker.waiting": "tests/broker/test_waiting.py",
    "broker.admin": "tests/inspection/test_snapshot.py",
    "broker.latency": "tests/broker/test_latency.py",
    "inspection.snapshot": "tests/inspection/test_snapshot.py",
    "broker.recovery": "tests/broker/test_recovery.py",
    "inspection.search": "tests/inspection/test_search.py",
    "broker.seeking": "tests/broker/test_seeking.py",
    "inspection.times": "tests/inspection/test_times.py",
    "broker.trimming": "tests/broker/test_trimming.py",
    "broker.stream": "tests/broker/test_stream.py",
    "log.extents": "tests/log/test_extents.py",
    "log.index": "tests/log/test_index.py",
    "log.index_file": "tests/log/test_index_file.py",
    "log.inspection": "tests/log/test_inspection.py",
    "log.reading": "tests/log/test_reading.py",
    "migration.check": "tests/migration/test_check.py",
    "migration.records": "tests/migration/test_records.py",
    "migration.topic_import": "tests/migration/test_topic_import.py",
}
"""For each module, its test."""
