"""Policy documents in TOML and JSON: invalid documents, error messages, setting keys."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sparq.nsqd import policy_document
from sparq.nsqd.policy_document import BYTES_MAX, DocumentError, entries, read, read_file

TOML = b"""
[[policies]]
topic = "clicks*"
retention_time = "26h"

[[policies]]
topic = "*"
channel = "slow"
max_channel_lag_time = 60000
max_channel_consumers = 2
"""
ENTRIES = [
    {"topic": "clicks*", "retention_time": "26h0m0s"},
    {
        "topic": "*",
        "channel": "slow",
        "max_channel_lag_time": "1m0s",
        "max_channel_consumers": 2,
    },
]
FLAGS = {
    "drop_oldest": False,
    "max_attempts": 0,
    "max_channel_consumers": 0,
    "max_channel_lag_bytes": 0,
    "max_channel_lag_time": "0s",
    "max_channels": 0,
    "max_client_publish_rate": 0,
    "max_publish_rate": 0,
    "max_topic_bytes": 0,
    "max_topic_messages": 0,
    "message_ttl": "0s",
    "retention_bytes": 0,
    "retention_time": "0s",
}


def document(*policies: dict[str, Any]) -> bytes:
    return json.dumps({"policies": policies}).encode()


REFUSED = [
    (b"", "invalid JSON: "),
    (b"[]", "not a policy document"),
    (b"[" * 90_000, "invalid JSON: "),
    (b"\xff", "invalid JSON: "),
    (b'{"policies": 1}', "not a policy document"),
    (b'{"rules": []}', "unknown key rules: write [[policies]]"),
    (document(1), "policy 1 is not a table"),  # type: ignore[arg-type]  # deliberately invalid
    (document({"max_channels": 1}), "policy 1 has no topic"),
    (document({"topic": "", "max_channels": 1}), "policy 1: topic must be a name"),
    (document({"topic": 7, "max_channels": 1}), "policy 1: topic must be a name"),
    (document({"topic": "a b", "max_channels": 1}), "policy 1: invalid topic: use at most"),
    (document({"topic": "a", "channel": ""}), "policy 1: channel must be a name"),
    (document({"topic": "a"}), "policy 1 has no settings: "),
    (
        document({"topic": "a", "max_channels": 1}, {"topic": "a", "retention_tme": 1}),
        "policy 2: unknown setting retention_tme: did you mean retention_time?",
    ),
    (document({"topic": "a", "sync_every": 1}), "policy 1: unknown setting sync_every"),
    (
        document({"topic": "a", "retention_time": "5 parsecs"}),
        'policy 1: retention_time = "5 parsecs": ',
    ),
    (document({"topic": "a", "max_channels": -1}), "policy 1: max_channels = -1: use 0 or"),
    (
        document({"topic": "a", "max_attempts": 65_536}),
        "max_attempts = 65536: use 65535 or less",
    ),
    (document({"topic": "a", "max_channels": True}), "policy 1: max_channels = "),
    (document({"topic": "a", "max_channels": 1.5}), "policy 1: max_channels = "),
    (document({"topic": "a", "max_channels": None}), "policy 1: max_channels = "),
    (document({"topic": "a", "max_channels": 1 << 70}), "policy 1: max_channels = "),
    (
        document({"topic": "a", "channel": "c", "retention_bytes": 1}),
        "policy 1: retention_bytes is a topic setting: remove the channel pattern",
    ),
    (document(*[{"topic": "a", "max_channels": 1}] * 1001), "at most 1000 are allowed"),
]
"""JSON documents that are refused, and a part of the reason."""


def test_toml_and_json_are_the_same() -> None:
    """TOML and the JSON that is shown for it give the same policies."""
    policies = read(TOML, is_toml=True)

    assert ENTRIES == entries(policies)
    assert policies == read(document(*ENTRIES), is_toml=False)
    assert () == read(b"", is_toml=True)
    assert () == read(b"{}", is_toml=False)


@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_a_wrong_document_is_refused(text: bytes, why: str) -> None:
    """The error has the policy, the key and the remedy."""
    with pytest.raises(DocumentError, match=re.escape(why)):
        read(text, is_toml=False)


def test_a_document_has_a_maximum_size() -> None:
    """The error has the size and the maximum, 262144 bytes."""
    with pytest.raises(DocumentError, match="is 262145 bytes long; the maximum is 262144"):
        read(b" " * (BYTES_MAX + 1), is_toml=True)


def test_an_error_of_a_file_names_the_file(tmp_path: Path) -> None:
    """The error for a missing or invalid file has its name; without a path: no policies."""
    file = tmp_path / "mine.toml"
    with pytest.raises(DocumentError, match=r"mine\.toml: no such file or directory"):
        read_file(str(file))
    file.write_bytes(TOML + b"\n[more]\n")
    with pytest.raises(DocumentError, match=r"mine\.toml: unknown key more: write \[\[policies"):
        read_file(str(file))

    file.write_bytes(TOML)
    assert ENTRIES == entries(read_file(str(file)))
    assert () == read_file("")


def test_each_setting_is_an_option_of_nsqd() -> None:
    """The keys of policies are the options of nsqd that may be set by policy."""
    assert sorted(FLAGS) == list(policy_document.FLAGS)
