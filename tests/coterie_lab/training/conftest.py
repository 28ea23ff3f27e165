"""One small corpus for all tests of the trainer."""

import pytest

from tests.corpora import tiny_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))
