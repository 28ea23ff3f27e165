"""Small runs of every kind end where they always did."""

import json

import pytest

from tests import golden


def test_losses_are_those_of_before():
    expected, found = json.loads(golden.FILE.read_text()), golden.measured()
    assert found.keys() == expected.keys()
    for label, losses in expected.items():
        # Other processors round differently.
        assert found[label] == pytest.approx(losses, rel=1e-5), label
