"""Settings of the pipeline with a data folder and an nsqlookupd, and errors in them."""

import pytest

from sparq.options.mistakes import Mistake
from sparq.pipeline.settings import Settings

LOOKUPD = ("127.0.0.1:4161",)


def settings_with(**values):
    """Settings with these values."""
    return Settings(**{"data": "data", "lookupd_http_addresses": LOOKUPD, **values})


def refusal(**values):
    """The one-sentence error about these values."""
    with pytest.raises(Mistake) as raised:
        settings_with(**values)
    sentence = str(raised.value)
    assert "\n" not in sentence
    return sentence
