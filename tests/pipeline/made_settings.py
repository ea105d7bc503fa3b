"""Settings of the pipeline with a data folder and an nsqlookupd, and errors in them."""

import pytest

from sparq.pipeline.settings import Settings, SettingsError

LOOKUPD = ("127.0.0.1:4161",)


def made(**values):
    """Settings with these values."""
    return Settings(**{"data": "data", "lookupd_http_addresses": LOOKUPD, **values})


def refused(**values):
    """The one-sentence error about these values."""
    with pytest.raises(SettingsError) as raised:
        made(**values)
    sentence = str(raised.value)
    assert "\n" not in sentence
    return sentence
