"""Who looks at nsqd sees which query reads a channel."""

import json

import pytest

from sparq.protocol import commands
from sparq.spark.options import OptionError
from sparq.spark.source_options import NAME_CHARACTERS_MAX


def told(server) -> list[str]:
    """The user agents that an nsqd was told."""
    heard = (command for command in server.heard if isinstance(command, commands.Identify))
    return [json.loads(bytes(command.body))["user_agent"] for command in heard]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"queryName": "clicks by hour"}, "clicks by hour (sparq spark source)"),
        ({}, "sparq spark source"),
    ],
)
def test_nsqd_is_told_which_query_reads(servers, readers, options, expected):
    """By the option queryName, if it is given."""
    readers(servers[1], **options).initialOffset()
    assert {*told(servers[1])} == {expected}


@pytest.mark.parametrize("name", ["two\nlines", "x" * (NAME_CHARACTERS_MAX + 1)])
def test_a_name_is_a_short_line(readers, name):
    """It is shown in lists."""
    with pytest.raises(OptionError, match="option queryName: expected at most"):
        readers(queryName=name)
