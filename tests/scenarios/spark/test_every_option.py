"""Every option is documented in the docstring."""

import re

from sparq.spark.data_source import NsqDataSource
from sparq.spark.options import DECLARED


def test_the_docstring_of_the_data_source_documents_every_option():
    """The docstring of NsqDataSource lists every option with its kind, default and meaning."""
    for option in DECLARED.values():
        default = re.escape(f", default {option.default}") if option.default else ""
        entry = rf"^    {option.name} : {option.kind}{default}\n        \S"
        assert re.search(entry, NsqDataSource.__doc__ or "", re.MULTILINE), option
