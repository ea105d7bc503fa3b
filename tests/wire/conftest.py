"""What the tests of both ends of a connection have in common."""

import pytest

from tests.client.certificates import Certificates, certificates


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Valid and invalid certificates."""
    return certificates(tmp_path_factory.mktemp("certificates"))
