"""Options that several daemons share have the same flags, keys and help in each."""

from __future__ import annotations

from typing import Any

import pytest

from sparq.daemon.options import AccessOptions, HttpOptions, LoggingOptions
from sparq.nsqd.options import NsqdOptions
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.options.declare import flags_of
from sparq.program.flags import parse

GROUPS = {"log.": LoggingOptions, "http.": HttpOptions, "access.": AccessOptions}


@pytest.mark.parametrize("group", GROUPS)
def test_a_shared_option_is_the_same_in_both_daemons(group: str) -> None:
    """Name, key, type, help and limits of a shared option are equal in nsqd and nsqlookupd."""

    def found(options: type[Any]) -> dict[str, tuple[Any, ...]]:
        return {
            flag.field: (flag.name, flag.key, flag.kind.name, flag.help, flag.least, flag.live)
            for flag in flags_of(options)
            if flag.field.startswith(group)
        }

    shared = found(NsqlookupdOptions)
    assert {group + flag.field for flag in flags_of(GROUPS[group])} == set(shared)
    assert shared.items() <= found(NsqdOptions).items()


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


def test_go_compatible_names_the_program() -> None:
    """The help of `--go-compatible` names the Go program, and its default is False."""
    (flag,) = (flag for flag in flags_of(NsqlookupdOptions) if flag.name == "go-compatible")

    assert "Go's nsqlookupd" in flag.help
    assert flag.default is False
