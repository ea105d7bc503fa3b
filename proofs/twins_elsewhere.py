"""Modules of arrays that have no pair among the twins: which test compares them with plain code."""

ELSEWHERE = {
    "broker.dead_letters": "tests/broker/test_letters.py",
    "broker.fates": "tests/broker/test_letters.py",
    "broker.channel": "tests/broker/test_model.py",
    "broker.waiting": "tests/broker/test_deferred.py",
    "broker.admin": "tests/broker/test_random_lives.py",
    "broker.latency": "tests/broker/test_percentiles.py",
    "inspection.picture": "tests/broker/test_random_lives.py",
    "broker.recovery": "tests/broker/test_restore.py",
    "inspection.search": "tests/inspection/test_times.py",
    "broker.seeking": "tests/broker/test_seeking.py",
    "inspection.times": "tests/inspection/test_times.py",
    "broker.trimming": "tests/broker/test_retention.py",
    "log.extents": "tests/log/test_blocks.py",
    "log.index": "tests/log/test_log.py",
    "log.index_file": "tests/log/test_index_file.py",
    "log.looking": "tests/inspection/test_times.py",
    "log.reading": "tests/log/test_damage.py",
    "migration.check": "tests/migration/test_check.py",
    "migration.records": "tests/migration/test_records.py",
    "migration.topic_import": "tests/migration/test_topic_import.py",
}
"""By the module, its test."""
