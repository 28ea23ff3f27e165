"""The E-step: the parallel rounds give the paper's loop, word for word."""

import subprocess
import sys

import pytest
import torch

from coterie.clustering import assignment
from tests.reference import greedy


def case(seed: int):
    """A random problem; coarse scores and counts make ties, small limits make full clusters."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high):
        return int(torch.randint(low, high + 1, (1,), generator=generator))

    n_words, n_clusters = draw(1, 40), draw(1, 8)
    levels = draw(1, 30)
    score = torch.randint(0, levels, (n_words, n_clusters), generator=generator).float()
    counts = torch.randint(0, draw(1, 20) + 1, (n_words,), generator=generator)
    capacity = draw(1, n_words)
    budget = draw(1, max(int(counts.sum()), 1) + 1)
    settled = None
    if draw(0, 2) == 0:
        stays = torch.rand(n_words, generator=generator) < 0.3
        settled = torch.where(stays, torch.randint(0, n_clusters, (n_words,), generator=generator), -1)
    return score, counts, n_clusters, capacity, budget, settled


def solve(score, counts, n_clusters, capacity, budget, settled):
    try:
        return assignment.assign(lambda words: score[words], counts, n_clusters, capacity, budget, settled).tolist()
    except ValueError as error:
        return None if "find no cluster with room" in str(error) else error


@pytest.mark.parametrize("block", [1 << 25, 16], ids=["one block", "many blocks"])
def test_rounds_equal_the_loop_in_thousands_of_cases(block, monkeypatch):
    monkeypatch.setattr(assignment, "BLOCK_SCORES", block)
    placed = 0
    for seed in range(3000):
        problem = case(seed)
        expected = greedy.assign(*problem)
        assert solve(*problem) == expected, f"seed {seed}"
        placed += expected is not None
    assert 1000 < placed < 2900  # both outcomes are tried


def test_the_lower_cluster_wins_a_tie_and_nan_never_wins():
    score = torch.tensor([[1.0, 1.0, 0.0], [torch.nan, 0.5, 0.5]])
    result = assignment.assign(lambda words: score[words], torch.tensor([2, 1]), 3, 2, 10)
    assert result.tolist() == [0, 1]


def test_memory_stays_bounded():
    """A table of all scores would take 1.1 GB here; blocks take a fraction."""
    program = """
import resource, torch
from coterie import SelfOrganizedSoftmax
from coterie.clustering import assignment
assignment.BLOCK_SCORES = 1 << 22
head = SelfOrganizedSoftmax(16, 300_000, torch.randint(1, 9, (300_000,)), n_clusters=1000, reorganize_every=10)
head.statistic.total.normal_(); head.statistic.weight.fill_(1.0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
head.reorganize()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 500, "MiB"
