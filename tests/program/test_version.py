"""What a program says of its version."""

import re

from sparq.program.version import sparq_version, version_line


def test_the_version_is_the_one_that_clients_compare() -> None:
    """NSQ's form and number first, for those who parse it; then sparq's, and what it runs on."""
    assert re.fullmatch(
        rf"nsqd v1\.3\.0 \(sparq {re.escape(sparq_version())}, built w/python3\.\d+\.\d+\)",
        version_line("nsqd"),
    )
    assert re.match(r"\d+\.\d+", sparq_version())
