"""The security table: each rule, and the tests that fail if it is broken.

    python -m tests.scenarios.security.rows     the tests, for `make security`

Where a rule is stricter than NSQ it is an option, off by default, and its test turns it on. The
letters: names (S), network (N), access (A), web (W), supply and data (D).
"""

from __future__ import annotations

import sys
from typing import Final

HERE: Final = "scenarios/security/"
PAGES: Final = "scenarios/admin_pages/"

ROWS: Final = {
    "S-1": (
        "no topic or channel name leads outside the data path, and no two names share a folder",
        (f"{HERE}test_names.py", "protocol/test_names.py"),
    ),
    "S-2": (
        "the tools check names again, and write files only below their output folder",
        (f"{HERE}test_tool_files.py", "tools/test_files.py"),
    ),
    "S-3": (
        "topics, channels, connections and the bytes of a topic can be limited",
        ("scenarios/starting/test_flags.py", "scenarios/overload/test_low_rates.py"),
    ),
    "N-1": (
        "silent connections are closed: before the magic bytes, in a handshake, in an HTTP head",
        (f"{HERE}test_slow_clients.py",),
    ),
    "N-2": (
        "a command or request that arrives too slowly is cut off and delays no other client",
        (f"{HERE}test_slow_clients.py",),
    ),
    "N-3": ("sizes are checked before memory is allocated", (f"{HERE}test_bounds.py",)),
    "N-4": (
        "connections of unreachable peers are closed; heartbeats can be required",
        ("scenarios/protocol/test_identify_options.py", "protocol/test_identify.py"),
    ),
    "N-5": (
        "the size of decompressed data is bounded",
        (f"{HERE}test_bounds.py", "protocol/test_compression.py"),
    ),
    "N-6": (
        "a client that sends commands and reads no responses uses bounded memory",
        (f"{HERE}test_bounds.py",),
    ),
    "N-7": (
        "IDENTIFY and AUTH bodies are bounded in size, nesting depth and number range",
        (f"{HERE}test_json.py", "protocol/test_identify.py"),
    ),
    "N-8": (
        "no client can finish, requeue or touch another client's messages",
        ("scenarios/protocol/test_malformed.py",),
    ),
    "N-9": (
        "a command in the wrong state is refused; data sent before TLS starts is not executed",
        ("scenarios/protocol/test_malformed.py", "scenarios/protocol/test_upgrade.py"),
    ),
    "N-10": (
        "TLS 1.2 or newer, no weak ciphers; client certificates and TLS can be required",
        (f"{HERE}test_tls_bounds.py", "nsqd/test_tls.py"),
    ),
    "N-11": (
        "the client library verifies host names in certificates, and bounds what it reads",
        (f"{HERE}test_client.py", "wire/test_client.py"),
    ),
    "N-12": (
        "a daemon without free file descriptors neither exits nor spins",
        (f"{HERE}test_descriptors.py",),
    ),
    "A-1": (
        "AUTH denies by default, and is checked at every publish and subscribe",
        (f"{HERE}test_auth.py", f"{HERE}test_roles.py"),
    ),
    "A-2": ("the identity of a client never comes from its IDENTIFY", (f"{HERE}test_auth.py",)),
    "A-3": (
        "routes that change state accept only their method, and require the token if one is set",
        (f"{HERE}test_http_access.py", f"{HERE}test_roles.py"),
    ),
    "A-4": (
        "nsqlookupd can check the broadcast addresses of nsqds, and limit each peer",
        (f"{HERE}test_lookup_peers.py", "scenarios/starting/test_flags.py"),
    ),
    "A-5": (
        "no output contains a secret",
        (f"{HERE}test_secrets.py", f"{HERE}test_upstream_token.py"),
    ),
    "A-6": ("no client can forge log lines", (f"{HERE}test_log_lines.py",)),
    "W-1": (
        "without configuration, only requests from nsqadmin's own machine may change state",
        (f"{HERE}test_admin.py", "nsqadmin/access/test_rules.py"),
    ),
    "W-2": (
        "pages of other sites cannot change state",
        (f"{HERE}test_admin.py", f"{PAGES}test_cross_site.py"),
    ),
    "W-3": ("no name and no message body can inject a script", (f"{PAGES}test_hostile.py",)),
    "W-4": (
        "every response has security headers, and static files come from a fixed table",
        (f"{HERE}test_admin.py",),
    ),
    "W-5": (
        "requests for unknown host names are refused",
        (f"{HERE}test_admin.py", "nsqadmin/access/test_hosts.py"),
    ),
    "W-6": (
        "nsqadmin sends no request to an address that only a peer or a user named",
        (f"{HERE}test_admin.py",),
    ),
    "W-7": ("ambiguous HTTP requests are refused", (f"{HERE}test_ambiguous_http.py",)),
    "W-8": (
        "pages are accessible and have no known weaknesses",
        (f"{PAGES}test_accessible.py", f"{HERE}test_supply.py"),
    ),
    "D-1": ("no unpickling, no eval, no shell", (f"{HERE}test_supply.py",)),
    "D-2": (
        "dependencies are pinned by hash and have no known weaknesses",
        (f"{HERE}test_supply.py",),
    ),
    "D-3": (
        "files are private to their owner, and daemons need no privileges",
        (f"{HERE}test_files.py",),
    ),
    "D-4": (
        "all tools treat message bodies as bytes",
        (
            f"{HERE}test_forwarding.py",
            "scenarios/forwarding/test_nsq_to_http.py",
            "tools/test_to_nsq.py",
            "tools/test_files.py",
        ),
    ),
    "D-5": (
        "Spark's plans contain no secrets; its schema is fixed, its bodies bounded",
        (
            "spark/test_data_source.py",
            "client/test_range_reader.py",
            "scenarios/spark/test_layers.py",
        ),
    ),
}
"""Each row's rule and its test files, below `tests`."""

if __name__ == "__main__":
    files = {f"tests/{name}" for _, names in ROWS.values() for name in names}
    sys.stdout.write(" ".join(sorted(files)) + "\n")
