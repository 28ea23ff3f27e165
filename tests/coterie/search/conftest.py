"""What tests of the search ask for."""

import pytest

from coterie.search import exact


@pytest.fixture
def no_vocabulary_is_small(monkeypatch):
    """The search opens clusters however few words there are."""
    monkeypatch.setattr(exact, "SMALL", 0)
