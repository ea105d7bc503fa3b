"""Every option is documented in the docstring, and has a test of its effect."""

import ast
import re
from pathlib import Path

from sparq.spark.data_source import NsqDataSource
from sparq.spark.options import DECLARED

TESTS = Path(__file__).parents[2]
EFFECTS = {
    "topic": "test_session.py::test_a_batch_read_gives_every_message_with_its_columns",
    "topics": "test_several_topics.py::test_topics_of_all_nsqds_are_read_together",
    "topicsPattern": "test_several_topics.py::"
    "test_a_topic_that_appears_is_read_from_its_first_message",
    "nsqd_tcp_addresses": "spark/test_source.py::"
    "test_without_a_limit_a_batch_reads_to_the_logs_ends",
    "lookupd_http_addresses": "test_session.py::test_rows_are_exactly_once_if_an_nsqd_is_killed",
    "nsqdTimeoutMs": "spark/test_ranges.py::test_waiting_ends_at_the_time_limit",
    "tls_v1": "test_layers.py::test_a_batch_is_read",
    "tls_root_ca_file": "test_layers.py::test_a_batch_is_read",
    "tls_cert": "test_mistakes.py::test_wrong_credentials_are_named_in_the_error",
    "tls_key": "test_mistakes.py::test_wrong_credentials_are_named_in_the_error",
    "tls_min_version": "wire/test_client.py::test_old_tls_versions_are_refused",
    "tls_insecure_skip_verify": "test_mistakes.py::test_wrong_credentials_are_named_in_the_error",
    "snappy": "test_layers.py::test_a_batch_is_read",
    "deflate": "wire/test_client.py::test_identify_contains_the_key_of_every_upgrade",
    "deflate_level": "scenarios/client_library/test_options.py::test_deflate_level_is_negotiated",
    "auth_secret": "test_layers.py::test_a_batch_is_read",
    "auth_without_tls": "test_mistakes.py::test_wrong_credentials_are_named_in_the_error",
    "lookupd_authorization": "spark/test_connections.py::"
    "test_an_https_nsqlookupd_is_verified_and_gets_the_secret",
    "channel": "spark/test_source.py::test_the_cursor_follows_sparks_commits",
    "queryName": "spark/test_options.py::test_the_query_name_is_part_of_the_user_agent",
    "startingOffsets": "spark/test_batches.py::test_a_query_starts_at_starting_offsets",
    "startingTimestamp": "test_session.py::test_a_batch_may_start_at_a_time",
    "endingOffsets": "spark/test_source.py::test_starting_and_ending_offsets_limit_a_batch_read",
    "endingTimestamp": "test_reads.py::test_a_batch_may_end_at_a_time",
    "pushDownPredicate": "test_reads.py::test_predicates_on_the_time_are_pushed_down",
    "maxOffsetsPerTrigger": "spark/test_source.py::"
    "test_a_limit_applies_to_every_batch_and_all_rows_are_read_once",
    "maxBytesPerTrigger": "test_reads.py::test_the_bytes_of_micro_batches_are_limited",
    "minOffsetsPerTrigger": "spark/test_source.py::test_a_batch_waits_for_the_minimum_of_messages",
    "maxTriggerDelay": "spark/test_source.py::test_a_batch_waits_for_the_minimum_of_messages",
    "minPartitions": "spark/test_batches.py::test_a_range_is_cut_into_equal_parts",
    "maxRecordsPerPartition": "spark/test_batches.py::test_a_range_is_cut_into_equal_parts",
    "failOnDataLoss": "spark/test_batches.py::"
    "test_messages_deleted_before_they_were_read_are_data_loss",
    "firstOffsetsPerTrigger": "spark/test_source.py::test_batches_grow_while_messages_are_left",
    "lostNsqds": "test_nsqds_fail.py::test_an_nsqd_that_is_lost_for_good_is_given_up_by_name",
    "max_msg_size": "spark/test_sink.py::test_a_message_must_fit_an_mpub",
    "max_body_size": "spark/test_sink.py::test_a_message_must_fit_an_mpub",
    "max_req_timeout": "spark/test_sink.py::test_a_row_that_cannot_become_a_message_is_refused",
}


def functions_of(file: str) -> set[str]:
    """Return the test functions of a file in this folder, or at a path below `tests`."""
    folder = TESTS if "/" in file else Path(__file__).parent
    tree = ast.parse((folder / file).read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in tree.body if isinstance(node, kinds)}


def test_every_option_has_a_test_of_its_effect():
    """The table above contains every option, and its tests exist."""
    assert {option.name for option in DECLARED.values()} == EFFECTS.keys()
    for option, name in EFFECTS.items():
        file, _, function = name.partition("::")
        assert function in functions_of(file), option


def test_the_docstring_of_the_data_source_documents_every_option():
    """The docstring of NsqDataSource lists every option with its kind, default and meaning."""
    for option in DECLARED.values():
        default = re.escape(f", default {option.default}") if option.default else ""
        entry = rf"^    {option.name} : {option.kind}{default}\n        \S"
        assert re.search(entry, NsqDataSource.__doc__ or "", re.MULTILINE), option
