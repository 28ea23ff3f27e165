"""What tests of the explorer and of the service share."""

import pytest

from tests.hostile import hostile_run


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """The run of a small language model whose every tenth word is markup, or worse."""
    return hostile_run(tmp_path_factory.mktemp("run"))
