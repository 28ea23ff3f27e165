"""What tests of the laboratory share: a small corpus, and a run for the explorer and the service."""

import pytest

from tests.corpora import tiny_corpus
from tests.hostile import hostile_run


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """The run of a small language model whose every tenth word is markup, or worse."""
    return hostile_run(tmp_path_factory.mktemp("run"))
