"""Know the marker of the security table, and count what is marked.

    @pytest.mark.security("N-3")

A run that contains such tests ends with `security checks N, passed N`.
"""

import pytest

from tests.security import rows


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and the one who counts."""
    line = f"{rows.MARKER}(*names): checks these rows of tests/security/rows.py"
    config.addinivalue_line("markers", line)
    config.pluginmanager.register(rows.Report(), "security")
