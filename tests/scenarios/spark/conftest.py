"""Daemons for all tests of a file; each test uses its own topics."""

import pytest

from tests.support.own_topic import own_topic
from tests.support.servers import spawn_nsqd, spawn_nsqlookupd


@pytest.fixture(scope="module")
def lookupd(tmp_path_factory):
    """One nsqlookupd."""
    with spawn_nsqlookupd(tmp_path_factory.mktemp("lookupd")) as running:
        yield running


@pytest.fixture(scope="module")
def steady(tmp_path_factory, lookupd):
    """An nsqd that keeps running undisturbed."""
    with spawn_nsqd(tmp_path_factory.mktemp("steady"), lookupds=(lookupd,)) as running:
        yield running


@pytest.fixture
def topic(request):
    """A topic for this test."""
    return own_topic(request)
