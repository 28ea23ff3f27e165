"""What other people's programs do to a layer: averages over buffers, the meta device, tensors written from outside."""

import copy

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from coterie import SelfOrganizedSoftmax
from tests.layers import WIDTH

N = 60
COUNTS = [1000 // (n + 1) + 1 for n in range(N)]
OPTIONS = {"counts": COUNTS, "reorganize_every": 2, "own_words": 3}


def layer(**options):
    return SelfOrganizedSoftmax(WIDTH, N, **{**OPTIONS, **options})


def learn(head, updates=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(head.parameters(), 0.5)
    for _ in range(updates):
        hidden = torch.randn(20, WIDTH, generator=generator)
        head(hidden, torch.randint(0, N, (20,), generator=generator)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        head.step()
    return head


def assert_same_answers(one, two):
    hidden = torch.randn(5, WIDTH)
    torch.testing.assert_close(one.log_prob(hidden), two.log_prob(hidden))
    assert torch.equal(one.topk(hidden, 4)[1], two.topk(hidden, 4)[1])
    torch.testing.assert_close(one.eval()(hidden, torch.arange(5)).output, two.eval()(hidden, torch.arange(5)).output)
    assert one.partition.to_lists() == two.partition.to_lists()


# -- averages -------------------------------------------------------------------------------------------------------


def test_an_average_over_buffers_is_refused_and_not_answered():
    head = layer()
    average = AveragedModel(head, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for seed in range(5):
        learn(head, 3, seed)
        average.update_parameters(head)
    for ask in (
        lambda h: h.log_prob(torch.randn(2, WIDTH)),
        lambda h: h.embed(torch.arange(3)),
        lambda h: h.partition.own,
    ):
        with pytest.raises(RuntimeError, match=r"no valid clusters.*use_buffers=False"):
            ask(average.module)


def test_a_copy_does_not_take_another_version_for_its_own():
    """A copy counts the versions of its tensors anew; at some number of writes they would meet."""
    for writes in range(1, 12):
        head = learn(layer(), 8)
        copied, other = copy.deepcopy(head), learn(layer(), 8, seed=5)
        for _ in range(writes):
            copied.partition.cluster_of.copy_(other.partition.cluster_of)
            copied.partition.digest.copy_(other.partition.digest)
        assert copied.partition.to_lists() == other.partition.to_lists(), writes


def test_an_average_of_parameters_has_the_clusters_of_its_source():
    head = layer()
    average = AveragedModel(head, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=False)
    for seed in range(5):
        learn(head, 3, seed)
        average.update_parameters(head)
    expected = copy.deepcopy(head)
    with torch.no_grad():
        for mine, averaged in zip(expected.parameters(), average.module.parameters(), strict=True):
            mine.copy_(averaged)
    assert_same_answers(average.module, expected)


# -- the meta device ------------------------------------------------------------------------------------------------


def on_meta(by):
    if by == "context":
        with torch.device("meta"):
            return layer()
    return layer(device="meta")


@pytest.mark.parametrize("by", ["context", "argument"])
def test_built_on_meta_then_loaded_it_is_the_layer_that_was_saved(by):
    saved = learn(layer())
    head = on_meta(by).to_empty(device="cpu")
    head.load_state_dict(saved.state_dict())
    assert_same_answers(head, saved)
    learn(saved, seed=1)
    assert_same_answers(learn(head, seed=1), saved)  # what is remembered came along


@pytest.mark.parametrize("by", ["context", "argument"])
def test_built_on_meta_a_state_dict_can_be_assigned(by):
    saved = learn(layer())
    state = copy.deepcopy(saved.state_dict())
    head = on_meta(by)
    head.load_state_dict(state, assign=True)
    assert_same_answers(head, saved)
    learn(saved, seed=1)
    assert_same_answers(learn(head, seed=1), saved)
    assert not torch.equal(state["partition.cluster_of"], head.partition.cluster_of) or state["weight"] is not None


@pytest.mark.parametrize("by", ["context", "argument"])
def test_built_on_meta_then_reset_it_starts_as_it_was_built(by):
    head = on_meta(by).to_empty(device="cpu")
    head.reset_parameters()
    assert head.counts.tolist() == COUNTS
    assert head.partition.own.tolist() == [0, 1, 2]
    assert head.log_prob(torch.zeros(WIDTH)).exp().sum().item() == pytest.approx(1, abs=1e-5)
    assert head.measures().tokens == 0
    assert head.tally.unstepped() == 0
    assert not head.statistic.seen.any()
    moved = [move for move in (head.step() for _ in range(2)) if move]
    assert len(moved) == 1
    learn(head)


@pytest.mark.parametrize("by", ["context", "argument"])
def test_on_meta_it_can_be_put_in_order(by):
    head = on_meta(by).eval()
    assert {name: value.shape for name, value in head.state_dict().items()} == {
        name: value.shape for name, value in layer().state_dict().items()
    }


def test_a_first_question_in_inference_mode_does_not_stop_training():
    saved = learn(layer()).state_dict()
    head = on_meta("argument")
    state = {name: value for name, value in saved.items() if "_extra_state" not in name}
    head.load_state_dict(state, strict=False, assign=True)
    with torch.inference_mode():
        head.eval()(torch.randn(3, WIDTH), torch.arange(3))
    learn(head.train())


def test_a_mistake_with_devices_costs_nothing_that_is_remembered():
    head = learn(layer())
    before = head.statistic.get_extra_state()
    with pytest.raises(RuntimeError):
        head(torch.empty(3, WIDTH, device="meta"), torch.arange(3))
    learn(head, 1)
    assert (head.statistic.weight >= 0.5 * before[:, -1]).all()


def test_moving_a_layer_draws_no_random_numbers():
    head = layer()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    head.to("cpu").float()
    assert torch.equal(torch.rand(3), expected)


def test_memory_that_nobody_has_written_to_is_no_partition():
    for head in (
        on_meta("argument").to_empty(device="cpu"),
        torch.nn.utils.skip_init(SelfOrganizedSoftmax, WIDTH, N, **OPTIONS),
        layer().to_empty(device="cpu"),
    ):
        head.partition.cluster_of.fill_(7)  # in range, as it may happen to be
        with pytest.raises(RuntimeError, match=r"no valid clusters.*load a checkpoint or call reset_parameters\(\)"):
            head(torch.randn(3, WIDTH), torch.arange(3))
        head.load_state_dict(layer().state_dict())
        assert head.measures().tokens == 0
        learn(head)


# -- tensors written from outside -----------------------------------------------------------------------------------


def test_clusters_that_another_writes_are_followed_if_they_are_a_partition():
    head, other = learn(layer()), learn(layer(), seed=3)
    assert head.partition.to_lists() != other.partition.to_lists()
    for name, buffer in other.named_buffers():
        head.get_buffer(name).copy_(buffer)  # as a broadcast does
    for mine, theirs in zip(head.parameters(), other.parameters(), strict=True):
        mine.data.copy_(theirs.data)
    assert_same_answers(head, other)


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: p.cluster_of.copy_(p.cluster_of.roll(1)),
        lambda p: p.cluster_of.fill_(0),
        lambda p: p.cluster_of.index_fill_(0, torch.tensor([5]), 1000),
        lambda p: p.cluster_of.index_fill_(0, torch.tensor([5]), -3),
        lambda p: setattr(p, "cluster_of", p.cluster_of[:-1]),
    ],
)
def test_clusters_that_are_none_are_refused_everywhere(damage):
    head = learn(layer())
    damage(head.partition)
    hidden = torch.randn(3, WIDTH)
    for ask in (
        lambda: head(hidden, torch.arange(3)), lambda: head.log_prob(hidden), lambda: head.topk(hidden, 2),
        lambda: head.sample(hidden), lambda: head.extend(hidden, torch.zeros(3), 2), lambda: head.reorganize(),
        lambda: head.partition.to_lists(),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match="this layer has no valid clusters"):
            ask()


def test_what_is_remembered_is_no_buffer_that_others_overwrite_or_average():
    names = {name for name, _ in layer().named_buffers()}
    assert names == {
        "counts", "prior.shift",
        *(f"partition.{name}" for name in ("cluster_of", "digest", "words", "offsets", "position", "slots")),
        "partition.root_sizes",
    }  # fmt: skip


def test_a_checkpoint_with_an_average_of_clusters_is_refused_and_changes_nothing():
    head, state = learn(layer()), learn(layer(), seed=2).state_dict()
    before = copy.deepcopy(head.state_dict())
    state["partition.cluster_of"] = (state["partition.cluster_of"] + head.partition.cluster_of) // 2
    with pytest.raises(RuntimeError, match=r"no clusters that fit.*use_buffers=False"):
        head.load_state_dict(state)
    for name, value in head.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_kept_tensors_follow_a_model_that_is_moved_tensor_by_tensor():
    head = on_meta("argument")
    saved = learn(layer())
    for name, value in saved.state_dict().items():  # without load_state_dict, as transformers does it
        *path, last = name.split(".")
        module = head.get_submodule(".".join(path))
        if last == "_extra_state":
            module.set_extra_state(value)
        elif last in module._parameters:
            module._parameters[last] = torch.nn.Parameter(value)
        else:
            module._buffers[last] = value.clone()
    assert_same_answers(head, saved)
    learn(head)


def test_half_of_a_layer_keeps_what_it_remembers_exact():
    head = learn(layer()).to(torch.bfloat16)
    assert head.statistic.total.dtype == torch.float32
    assert head.meter.sums.dtype == torch.float64


def test_a_reset_layer_reorganizes_anew():
    head = learn(layer(reorganize_every="auto"), 3)
    head.schedule.state = (3, 9, 4)
    assert head.schedule.settled
    head.reset_parameters()
    assert (head.updates, head.schedule.settled) == (0, False)


def test_clusters_alone_can_be_loaded():
    head, other = learn(layer()), learn(layer(), seed=4)
    head.load_state_dict({"partition.cluster_of": other.partition.cluster_of.clone()}, strict=False)
    assert head.partition.to_lists() == other.partition.to_lists()


def test_words_of_their_own_are_chosen_again_after_a_rollback_and_only_from_enough_counts():
    head = layer(counts=None, own_words=None, n_clusters=4)
    start = copy.deepcopy(head.state_dict())
    for rounds in range(2):
        head(torch.randn(2, WIDTH), torch.tensor([0, 1]))
        head.reorganize()
        assert not len(head.partition.own)  # two occurrences say nothing of 60 words
        target = torch.cat((torch.zeros(200, dtype=torch.int64), torch.arange(N)))
        head(torch.randn(len(target), WIDTH), target)
        head.reorganize()
        assert 0 in head.partition.own.tolist(), rounds
        head.load_state_dict(start)
        assert not len(head.partition.own)
