"""Options that several daemons share have the same flags, keys and help in each."""

from __future__ import annotations

from typing import Any

import pytest

from sparq.daemon.options import AccessOptions, HttpOptions, LoggingOptions
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.program.flags import parse

GROUPS = {"log.": LoggingOptions, "http.": HttpOptions, "access.": AccessOptions}


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        (["--log-format=json", "--log-utc"], {"format": "json", "utc": True}),
        (["--verbose"], {"verbose": True}),
        (["--log-level=ERROR"], {"level": 40}),
    ],
)
def test_log_flags_begin_with_log(arguments: list[str], changed: dict[str, Any]) -> None:
    """Log flags begin with `log-`, except NSQ's old `--verbose`."""
    log = parse(NsqlookupdOptions, "nsqlookupd", arguments).log

    assert LoggingOptions(**{"prefix": "[nsqlookupd] ", **changed}) == log
