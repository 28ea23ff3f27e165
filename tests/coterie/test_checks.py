"""Bad input gets an error that says what was given, what was expected, what to do; and nothing is lost."""

import copy
import math

import pytest
import torch

from coterie import Partition, SelfOrganizedSoftmax
from tests.layers import WIDTH, make


def build(**options):
    return SelfOrganizedSoftmax(**{"in_features": WIDTH, "n_classes": 53, **options})


@pytest.mark.parametrize(
    "options, message",
    [
        ({"counts": torch.ones(52)}, r"shape \(53,\); got \(52,\)"),
        ({"counts": torch.ones(53, 1)}, r"shape \(53,\); got \(53, 1\)"),
        ({"counts": [1] * 52 + [-4]}, "class 52 has -4"),
        ({"counts": torch.tensor([1.0] * 52 + [math.nan])}, "class 52 has nan"),
        ({"counts": torch.tensor([1.0] * 52 + [0.5])}, "whole numbers.*class 52 has 0.5"),
        ({"counts": [0] * 53}, "all zero"),
        ({"counts": [2**60] * 53}, "at most 2.53"),
        ({"counts": torch.full((53,), 1e19)}, "at most 2.53"),
        ({"counts": [1 + 1j] * 53}, "whole numbers; got torch.complex64"),
        ({"counts": {"a": 1}}, "a list of numbers, one per class; got <class 'dict'>"),
        ({"counts": ["1"] * 53}, "a list of numbers, one per class; got <class 'list'>"),
        ({"n_clusters": 2.0}, "n_clusters must be a whole number, or None; got 2.0"),
        ({"reorganize_every": 2.5}, 'reorganize_every must be a whole number from 1, "auto", or None.*; got 2.5'),
        ({"reorganize_every": "often"}, "a whole number from 1, \"auto\", or None for a fixed partition; got 'often'"),
        ({"reorganize_every": True}, "reorganize_every must be a whole number from 1.*; got True"),
        ({"reorganize_until": "9"}, "reorganize_until must be a whole number, or None; got '9'"),
        ({"ignore_index": None}, "ignore_index must be a whole number; got None"),
        ({"n_classes": True}, "n_classes must be a whole number; got True"),
        ({"projection": "x"}, "projection must be one of True, False; got 'x'"),
        ({"bias": None}, "bias must be one of True, False; got None"),
        ({"n_classes": 1}, "n_classes must be at least 2; got 1"),
        ({"in_features": 0}, "in_features must be at least 1; got 0"),
        ({"n_clusters": 54}, "from 1 to n_classes = 53; got 54"),
        ({"gamma": 0.7}, "gamma = 0.7 gives 8 clusters of at most 6 words each for 53 words: raise gamma"),
        ({"gamma": -1}, "gamma must be above 0"),
        ({"frequency_budget": 0.0}, "frequency_budget must be above 0"),
        (
            {"counts": [1] * 53, "frequency_budget": 0.01},
            r"find no cluster with room.*Raise frequency_budget",
        ),
        ({"reorganize_every": 0}, "reorganize_every must be a whole number from 1.*; got 0"),
        ({"own_words": -1}, "own_words must be from 0 to n_classes = 53; got -1"),
        ({"own_words": 54}, "own_words must be from 0 to n_classes = 53; got 54"),
        ({"own_words": True}, "own_words must be a number of words, a list of their ids, or None; got True"),
        ({"own_words": 2.5}, "a list of their ids, or None; got 2.5"),
        ({"own_words": "3"}, "a list of their ids, or None; got '3'"),
        ({"own_words": [1, 2.0]}, r"a list of their ids, or None; got \[1, 2.0\]"),
        ({"own_words": [[1, 2]]}, r"a list of their ids, or None; got \[\[1, 2\]\]"),
        ({"own_words": torch.tensor(3)}, r"a list of their ids, or None; got tensor\(3\)"),
        ({"own_words": torch.zeros(53).bool()}, "a list of their ids, or None"),
        ({"own_words": {1: 2}}, "a list of their ids, or None; got {1: 2}"),
        ({"own_words": [5, 53]}, "own_words names class 53; classes are 0 to 52"),
        ({"own_words": [5, -1]}, "own_words names class -1"),
        ({"own_words": [5, 0, 5]}, "own_words names a class twice"),
        ({"reorganize_until": -1}, "reorganize_until must be a number of updates"),
        ({"label_smoothing": 1.0}, "label_smoothing must be at least 0 and below 1; got 1.0"),
        ({"statistic": "median"}, "statistic must be one of 'mean_hidden', 'table'; got 'median'"),
        ({"smoothing": "none"}, "smoothing must be one of"),
        ({"score": "best"}, "score must be one of"),
        ({"reduction": "max"}, "reduction must be one of"),
        ({"activation": "swish"}, "activation must be one of"),
        ({"backend": "cuda"}, "backend must be one of"),
        ({"partition": Partition([0, 1], 2)}, "has 2 words in 2 clusters; expected 53 words"),
        (
            {"partition": Partition([0] * 53, 1), "n_clusters": 4},
            "53 words in 1 clusters; expected 53 words in 4 clusters",
        ),
    ],
)
def test_options(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)


@pytest.mark.parametrize("bad", [53, 1000, -1, -101])
def test_a_target_out_of_range_is_refused_and_changes_nothing(bad):
    head = make()
    before = copy.deepcopy(head.state_dict())
    target = torch.randint(0, 53, (6,))
    target[2] = bad
    with pytest.raises(IndexError, match=rf"1 target\(s\) out of range, such as {bad}; classes are 0 to 52.*-100"):
        head(torch.randn(6, WIDTH), target)
    torch.testing.assert_close(head.state_dict(), before, rtol=0, atol=0)
    head(torch.randn(6, WIDTH), target.clamp(0, 52))  # and it goes on


def test_a_compiled_layer_learns_nothing_from_a_bad_target_and_step_raises():
    torch._dynamo.reset()
    head = make()
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    hidden = torch.randn(3, WIDTH)
    alone = head(hidden[:1], torch.tensor([5])).loss
    assert torch.allclose(compiled(hidden, torch.tensor([5, 99, -100])).loss, alone, atol=1e-6)
    assert head.statistic.seen.nonzero().tolist() == [[5]]
    with pytest.raises(IndexError, match="such as 99"):
        head.step()
    assert head.step() is None


@pytest.mark.parametrize(
    "hidden, target, message",
    [
        (torch.randn(4, 6), torch.zeros(4).long(), r"hidden must be \(\.\.\., 7\) wide; got shape \(4, 6\)"),
        (torch.tensor(1.0), torch.tensor(0), "hidden must be"),
        (torch.randn(4, 7), torch.zeros(5).long(), r"leading shape \(4,\); got \(5,\)"),
        (torch.randn(4, 7), torch.zeros(4), "class numbers.*got .* of torch.float32"),
    ],
)
def test_shapes(hidden, target, message):
    with pytest.raises(ValueError, match=message):
        make()(hidden, target)


def test_a_hidden_vector_of_another_dtype():
    with pytest.raises(TypeError, match=r"hidden is torch\.float64, the layer torch\.float32"):
        make().log_prob(torch.randn(3, WIDTH).double())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_in_hidden_leaves_the_statistic_alone_and_is_said(bad):
    head = make(counts=None, reorganize_every=1)
    head(torch.randn(30, WIDTH), torch.randint(0, 53, (30,)))
    remembered = head.statistic.total.clone()
    hidden = torch.randn(30, WIDTH)
    hidden[4, 2] = bad
    head(hidden, torch.randint(0, 53, (30,)))
    with pytest.warns(UserWarning, match=r"1 batch\(es\) left out of the statistic"):
        head.step()
    assert torch.equal(head.statistic.total, remembered)


@pytest.mark.parametrize("k", [0, 54, -1])
def test_k_out_of_range(k):
    with pytest.raises(ValueError, match=f"k must be from 1 to n_classes = 53; got {k}"):
        make().topk(torch.randn(WIDTH), k)
    with pytest.raises(ValueError, match=f"top_k must be from 1 to n_classes = 53; got {k}"):
        make().sample(torch.randn(WIDTH), top_k=k)


@pytest.mark.parametrize("options", [{"temperature": -1}, {"temperature": math.nan}, {"top_p": 0}, {"top_p": 1.1}])
def test_bad_sampling(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        make().sample(torch.randn(WIDTH), **options)


SIZES = "the checkpoint holds .* the layer was built for 53 classes in 8 clusters, width 8"


@pytest.mark.parametrize(
    "other, message",
    [
        ({"n_classes": 54}, SIZES),
        ({"n_clusters": 9}, SIZES),
        ({"in_features": 7}, SIZES),
        ({"partition": Partition([0] * 46 + list(range(1, 8)), 8)}, "a cluster of 46 words; this layer allows"),
        ({"own_words": 9}, "9 words stand alone; this layer has room for 8: build it with .* own_words=9"),
        ({"own_words": list(range(20, 53))}, "33 words stand alone; this layer has room for 8"),
        ({"statistic": "table"}, "statistic is 'table', the layer's 'mean_hidden'"),  # of the same shape
    ],
)
def test_a_checkpoint_of_another_layer_is_refused_and_changes_nothing(other, message):
    head = make(in_features=8, own_words=5)
    before = copy.deepcopy(head.state_dict())
    with pytest.raises(RuntimeError, match=message):
        head.load_state_dict(make(**{"in_features": 8, **other}).state_dict())
    torch.testing.assert_close(head.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("bad, message", [(-1, "clusters -1 to"), (9, "clusters 0 to 9; there are 8, from 0")])
def test_a_damaged_checkpoint_is_refused_and_changes_nothing(bad, message):
    head, other = make(own_words=5), make(own_words=5).state_dict()
    other["partition.cluster_of"][0] = bad
    before = copy.deepcopy(head.state_dict())
    with pytest.raises(RuntimeError, match=message):
        head.load_state_dict(other)
    torch.testing.assert_close(head.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("theirs, ours", [(0, 5), (5, 0), (3, 20), (20, 20)])
def test_a_checkpoint_of_as_many_own_words_as_there_is_room_for_is_taken(theirs, ours):
    """What a refusal advises works, too."""
    other, hidden = make(own_words=theirs), torch.randn(4, WIDTH)
    head = make(own_words=ours)
    if theirs > ours:
        with pytest.raises(RuntimeError, match=f"room for 0: build it .* own_words={theirs}"):
            head.load_state_dict(other.state_dict())
        head = make(counts=other.counts, own_words=theirs)
    head.load_state_dict(other.state_dict())
    assert torch.equal(head.partition.own, other.partition.own)
    torch.testing.assert_close(head.log_prob(hidden), other.log_prob(hidden))
    target = torch.randint(0, 53, (4,))
    torch.testing.assert_close(head(hidden, target), other(hidden, target))
    with_partition = make(partition=other.partition)
    with_partition.load_state_dict(other.state_dict())
    torch.testing.assert_close(with_partition.log_prob(hidden), other.log_prob(hidden))


def test_step_begins_to_count_batches_anew():
    head = make(reorganize_every=1000)
    head(torch.randn(4, WIDTH), torch.randint(0, 53, (4,)))
    assert head.tally.unstepped() == 1
    head.step()
    assert head.tally.unstepped() == 0


def test_a_budget_without_end_is_no_budget():
    head = make(frequency_budget=math.inf)
    head(torch.randn(100, WIDTH), torch.randint(0, 53, (100,)))
    head.reorganize()


def test_a_reorganization_without_room_keeps_the_clusters_and_says_so():
    head = make(reorganize_every=1, counts=torch.ones(53).long())
    head.frequency_budget = 0.01
    before = head.partition.cluster_of.clone()
    head(torch.randn(500, WIDTH), torch.randint(0, 53, (500,)))
    with pytest.warns(UserWarning, match="the clusters stay as they are: .* Raise frequency_budget"):
        assert head.step() is None
    with pytest.raises(ValueError, match="Raise frequency_budget"):
        head.reorganize()
    assert torch.equal(head.partition.cluster_of, before)
