"""The examples in docstrings run, and give what they say."""

import doctest
from importlib import import_module

import pytest
import torch

from coterie import SelfOrganizedSoftmax


@pytest.mark.parametrize("module", ["softmax", "clustering.partition", "search.sampling"])
def test_examples_in_docstrings(module: str) -> None:
    names = {"head": SelfOrganizedSoftmax(16, 10_000), "tokens": torch.zeros(5, 2, dtype=torch.int64), "torch": torch}
    found = doctest.testmod(import_module(f"coterie.{module}"), extraglobs=names)
    assert found.attempted
    assert not found.failed
