"""Modules of arrays that have no pair among the twins: which test compares them with plain code."""

ELSEWHERE = {
    "broker.fates": "tests/broker/test_letters.py",
    "broker.channel": "tests/broker/test_model.py",
    "broker.waiting": "tests/broker/test_deferred.py",
    "broker.admin": "tests/broker/test_random_lives.py",
    "broker.latency": "tests/broker/test_percentiles.py",
    "inspection.snapshot": "tests/broker/test_random_lives.py",
    "broker.recovery": "tests/broker/test_restore.py",
    "inspection.search": "tests/inspection/test_times.py",
    "broker.seeking": "tests/broker/test_seeking.py",
    "inspection.times": "tests/inspection/test_times.py",
    "broker.trimming": "tests/broker/test_retention.py",
    "broker.stream": "tests/broker/test_letters.py",
    "log.check": "tests/log/test_go_queue.py",
    "log.extents": "tests/log/test_blocks.py",
    "log.go_records": "tests/log/test_go_queue.py",
    "log.index": "tests/log/test_log.py",
    "log.index_file": "tests/log/test_index_file.py",
    "log.looking": "tests/inspection/test_times.py",
    "log.reading": "tests/log/test_damage.py",
}
"""By the module, its test."""
