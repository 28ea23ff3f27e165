"""Who moved when: what a run notes of its reorganizations is true, small, and the same when it was interrupted."""

import numpy as np
import pytest
import torch

from coterie_lab.tasks.language.train import train
from coterie_lab.training.logs import read_journal
from coterie_lab.training.moves import History, _packed, _unpacked, partitions, read_moves, until
from coterie_lab.training.run import Run
from tests.corpora import small


def test_moves_are_packed_without_loss():
    generator = torch.Generator().manual_seed(0)
    before = torch.randint(0, 70_000, (5_000,), generator=generator)
    history = History(before)
    after = torch.where(torch.rand(5_000, generator=generator) < 0.3, 69_999, before)
    for move in (*history.moves, history.add(7, after), history.add(8, after)):
        again = _unpacked(_packed(move))
        assert again.step == move.step
        assert np.array_equal(again.words, move.words)
        assert np.array_equal(again.clusters, move.clusters)
    assert history.moves[2].words.size == 0
    # About two bytes a move.
    cluster_of = torch.randint(0, 211, (44_370,), generator=torch.Generator().manual_seed(0))
    assert len(_packed(History(cluster_of).moves[0])["packed"]) < 1.5 * 44_370


def test_a_runs_moves_lead_to_its_model(corpus, tmp_path):
    train(corpus, tmp_path / "run", small())
    run = Run(tmp_path / "run")
    moves = read_moves(run.moves)
    told = read_journal(run.reorganizations)
    assert [move.step for move in moves] == [0] + [record["step"] for record in told]
    assert [move.words.size for move in moves[1:]] == [record["words_moved"] for record in told]
    assert any(record["words_moved"] for record in told)
    best = torch.load(run.best, weights_only=True)
    kept = until(moves, best["evaluation"]["step"])
    *_, (last, before) = partitions(kept)
    assert not np.any(before[last.words] == last.clusters)
    before[last.words] = last.clusters
    assert np.array_equal(before, best["model"]["head.partition.cluster_of"].numpy())


def test_a_head_without_clusters_has_no_moves(corpus, tmp_path):
    train(corpus, tmp_path / "run", small(head="full", head_options={}, epochs=1))
    assert read_moves(tmp_path / "run/moves.jsonl") == []
    assert list(partitions([])) == []


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "moves.jsonl").write_text('{"step": 0, "moved": 3, "packed": "AAAA"}\n')
    with pytest.raises(ValueError, match=r"moves\.jsonl is damaged"):
        read_moves(tmp_path / "moves.jsonl")
