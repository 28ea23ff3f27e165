"""The kernels around the fused loss, and the whole layer with them; without a GPU they run in Triton's interpreter."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

pytest.importorskip("triton")

from coterie import metrics as measures
from coterie.clustering.statistics import MeanHidden
from coterie.faults import Faults
from coterie.kernels import grouping as grouping_kernel
from coterie.kernels import statistic, summary
from coterie.loss import grouping
from coterie.projection import Projected
from tests.kernels import (
    DEVICE,
    DTYPES,
    N_WORDS,
    interpreter_knows_bfloat16,  # noqa: F401
    new_memory_is_nan,  # noqa: F401
    seats,
)
from tests.layers import make

# -- grouping ---------------------------------------------------------------------------------------------------


def prepared(way, target, partition):
    faults = Faults(N_WORDS, -100, DEVICE)
    word, groups = way(faults, target, partition)
    return word, *groups, faults.tally


@pytest.mark.parametrize("tokens", [0, 1, 31, 32, 33, 300])
@pytest.mark.parametrize("different", [1, 4, N_WORDS])
@pytest.mark.parametrize("limit", [grouping_kernel.LIMIT, 8])
def test_grouping_is_the_sort(tokens, different, limit, monkeypatch):
    monkeypatch.setattr(grouping_kernel, "LIMIT", limit)
    for seed in range(3):
        g = torch.Generator().manual_seed(seed)
        partition = seats(g)
        names = torch.randperm(N_WORDS, generator=g)[:different]
        target = names[torch.randint(0, different, (tokens,), generator=g)]
        target[torch.rand(tokens, generator=g) < 0.2 * seed] = -100
        target = target.to(DEVICE)
        ways = (grouping_kernel.prepare, grouping.prepare)
        for ours, sort in zip(*(prepared(way, target, partition) for way in ways), strict=True):
            assert ours.dtype == sort.dtype
            assert torch.equal(ours, sort)


@pytest.mark.parametrize("bad", [N_WORDS, -1, -(2**40), 2**40])
def test_targets_out_of_range_are_left_out_and_tallied(bad):
    target = torch.tensor([3, bad, -100, bad, 5], device=DEVICE)
    partition = seats()
    ours, plain = (prepared(way, target, partition) for way in (grouping_kernel.prepare, grouping.prepare))
    assert ours[0].tolist() == [3, -1, -1, -1, 5]
    assert ours[-1].tolist() == [2, bad, 0, 0]
    for x, y in zip(ours, plain, strict=True):
        assert torch.equal(x, y)


# -- statistic --------------------------------------------------------------------------------------------------


def remembered(sample, target, counts, smoothing, batches=2, sound=True):
    """(total, weight) of the module and of the kernel after some batches."""
    groups = grouping.group(target, seats(torch.Generator().manual_seed(5)))
    module, ours = (MeanHidden(N_WORDS, sample.shape[1], smoothing, DEVICE) for _ in range(2))
    sound = torch.tensor(sound, device=DEVICE)
    for batch in range(batches):
        module.update(sample + batch, target, groups, counts, sound)
        statistic.update(ours, sample + batch, target, groups, counts, sound)
    return (module.total, module.weight), (ours.total, ours.weight)


@pytest.mark.parametrize("smoothing", ["mean", "paper"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens, row", [(1, 5), (60, 130), (64, 20), (200, 20)])
def test_statistic_is_the_update(tokens, row, dtype, smoothing):
    g = torch.Generator().manual_seed(tokens)
    sample = torch.randn(tokens, 2 * row, generator=g).to(dtype).to(DEVICE)[:, :row]
    target = torch.randint(-1, N_WORDS, (tokens,), generator=g)
    target[tokens // 2 :] = 3
    counts = torch.randint(0, 50, (N_WORDS,), generator=g).to(DEVICE)
    module, ours = remembered(sample, target.to(DEVICE), counts, smoothing)
    for x, y in zip(module, ours, strict=True):
        torch.testing.assert_close(y, x, rtol=1e-5, atol=1e-5)


def in_small_pieces(monkeypatch):
    monkeypatch.setattr(statistic, "CHUNK", 16)
    monkeypatch.setattr(statistic, "AHEAD", 32)


@pytest.mark.parametrize("often", [1, 15, 16, 17, 31, 32, 33, 64, 95, 96])
@pytest.mark.parametrize("word", [0, 77, N_WORDS - 1])
def test_statistic_of_a_word_whose_run_crosses_chunks(monkeypatch, often, word):
    """Runs that begin, end and lie wholly at every boundary of chunks of 16; the word is first, inside or last."""
    in_small_pieces(monkeypatch)
    target = torch.randint(0, N_WORDS, (96,), device=DEVICE)
    target[torch.randperm(96)[:often]] = word
    sample = torch.randn(96, 3, device=DEVICE).T.contiguous().T
    module, ours = remembered(sample, target, torch.full((N_WORDS,), 1000, device=DEVICE), "mean")
    for x, y in zip(module, ours, strict=True):
        torch.testing.assert_close(y, x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "runs",
    [
        (5, 63, 3, 0),  # from inside a chunk to inside another, several later
        (5, 70, 0, 0),  # to the last token, which is not the last of a chunk
        (0, 80, 0, 0),  # to the last token, which is: one word alone
        (9, 39, 0, 7),  # to the end of a chunk, tokens left out behind it
        (16, 48, 4, 40),  # chunks of nothing else; tokens left out for several chunks
        (30, 34, 33, 2),  # one run goes on where another comes in, and chunks end with the run looked for
        (1, 111, 1, 0),  # longer than what is looked at together, several times
    ],
)
def test_statistic_of_runs_of_given_lengths(monkeypatch, runs):
    in_small_pieces(monkeypatch)
    names = seats(torch.Generator().manual_seed(5)).words[[20, 21, 100]].tolist()  # in this order
    target = torch.tensor([word for word, n in zip((*names, -1), runs, strict=True) for _ in range(n)], device=DEVICE)
    target = target[torch.randperm(sum(runs))]
    sample = torch.randn(sum(runs), 5, device=DEVICE)
    module, ours = remembered(sample, target, torch.full((N_WORDS,), 50, device=DEVICE), "mean")
    for x, y in zip(module, ours, strict=True):
        torch.testing.assert_close(y, x, rtol=1e-5, atol=1e-6)
    assert torch.equal(ours[1] > 0, torch.bincount(target[target >= 0], minlength=N_WORDS) > 0)


def test_statistic_of_a_very_frequent_word_is_more_than_rounding():
    target = torch.full((11,), 7, device=DEVICE)
    counts = torch.full((N_WORDS,), 3_000_000, device=DEVICE)
    for _, weight in remembered(torch.randn(11, 3, device=DEVICE), target, counts, "mean", batches=1):
        assert weight[7].item() == pytest.approx(1 - (1 - 1 / 3_000_000) ** 11, rel=1e-5)


def test_statistic_leaves_out_a_batch_that_is_not_sound(monkeypatch):
    in_small_pieces(monkeypatch)
    target = torch.randint(0, 3, (40,), device=DEVICE)  # runs inside and across chunks
    counts = torch.full((N_WORDS,), 4, device=DEVICE)
    _, (total, weight) = remembered(torch.full((40, 6), torch.nan, device=DEVICE), target, counts, "mean", sound=False)
    assert not total.any()
    assert not weight.any()


# -- summary and the whole layer --------------------------------------------------------------------------------


USES = {  # of log P (T,) and of the mean loss ()
    "the loss": lambda output, loss: 3 * loss,
    "log P": lambda output, loss: (output * torch.arange(len(output), device=DEVICE)).sum(),
    "both": lambda output, loss: 3 * loss - (output * torch.arange(len(output), device=DEVICE)).sum(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("tokens", [0, 1, 5, 9000])
def test_summary_is_the_plain_one(tokens, use):
    sums = [torch.ones(3, dtype=torch.float64, device=DEVICE) for _ in range(2)]
    tallies = [torch.ones(4, dtype=torch.int64, device=DEVICE) for _ in range(2)]
    log_p = torch.randn(2, tokens, device=DEVICE, requires_grad=True)
    n_used = torch.tensor(max(tokens - 2, 0), device=DEVICE)
    results = []
    for way, total, tally in zip((summary.summarize, measures.summarize), sums, tallies, strict=True):
        output, loss, sound = way(*log_p, n_used, total, tally)
        gradients = torch.autograd.grad(USES[use](output, loss), log_p)
        results.append((output.detach(), loss.detach(), sound, *gradients))
    for x, y in zip((*results[0], sums[0], tallies[0]), (*results[1], sums[1], tallies[1]), strict=True):
        assert x.dtype == y.dtype
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


def test_the_gradient_of_the_loss_alone_is_one_number():
    log_p = torch.randn(2, 40, device=DEVICE).unbind()
    given = [x.requires_grad_() for x in log_p]
    sums, tally = torch.zeros(3, dtype=torch.float64, device=DEVICE), torch.zeros(4, dtype=torch.int64, device=DEVICE)
    _, loss, _ = summary.summarize(*given, torch.tensor(40, device=DEVICE), sums, tally)
    assert [x.stride() for x in torch.autograd.grad(loss, given)] == [(0,), (0,)]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_a_batch_that_is_not_sound_is_tallied_and_not_measured(value, compiled):
    sums = torch.tensor([-3.0, -4.0, 2.0], dtype=torch.float64, device=DEVICE)
    tally = torch.tensor([5, 6, 7, 8], device=DEVICE)
    way = torch.compile(summary.summarize, fullgraph=True, backend="aot_eager") if compiled else summary.summarize
    for broken in (False, True, False):
        log_p = torch.full((2, 2000), -0.5, device=DEVICE)
        if broken:
            log_p[1, 1500] = value
        *_, sound = way(*log_p, torch.tensor(1999, device=DEVICE), sums, tally)
        assert bool(sound) is not broken
    assert sums.tolist() == [-2003.0, -2004.0, 4000.0]
    assert tally.tolist() == [5, 6, 8, 11]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_layers_two_results_may_be_used_together(reduction):
    hidden, target = torch.randn(4, 9, 24, device=DEVICE), torch.randint(0, 90, (4, 9), device=DEVICE)
    target[0, :4] = -100
    weights, gradients = torch.rand(4, 9, device=DEVICE), []
    for backend in ("triton", "torch"):
        torch.manual_seed(4)
        layer = make(90, in_features=24, backend=backend, reduction=reduction).to(DEVICE)
        output, loss = layer(hidden, target)
        (2 * loss + (output * weights).sum()).backward()
        gradients.append([parameter.grad for parameter in layer.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"statistic": "table", "counts": None}])
def test_the_layer_trains_as_with_the_torch_backend(options):
    layers = []
    for backend in ("triton", "torch"):
        torch.manual_seed(4)
        layers.append(make(90, in_features=24, backend=backend, reorganize_every=2, **options).to(DEVICE))
    for _ in range(5):
        hidden, target = torch.randn(6, 9, 24, device=DEVICE), torch.randint(0, 90, (6, 9), device=DEVICE)
        target[0, :4] = -100
        losses = [layer(hidden, target).loss for layer in layers]
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
        moved = []
        for layer, loss in zip(layers, losses, strict=True):
            layer.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter -= 0.1 * parameter.grad
            moved.append(layer.step())
        assert moved[0] == moved[1]
    for x, y in zip(layers[0].state_dict().values(), layers[1].state_dict().values(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)
    assert layers[0].measures().perplexity == pytest.approx(layers[1].measures().perplexity, rel=1e-4)


def test_the_layer_compiled_learns_the_same():
    torch._dynamo.reset()
    eager = make(90, in_features=24, backend="triton", counts=None).to(DEVICE)
    other = copy.deepcopy(eager)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        hidden, target = torch.randn(40, 24, device=DEVICE), torch.randint(0, 90, (40,), device=DEVICE)
        target[3] = -100
        results = [module(hidden, target) for module in (eager, compiled)]
        torch.testing.assert_close(*results)
        gradients = []
        for head, (output, loss) in zip((eager, other), results, strict=True):
            head.zero_grad()
            (loss + output.sum()).backward()
            gradients.append([parameter.grad for parameter in head.parameters()])
        torch.testing.assert_close(*gradients)
    assert eager.meter.row()[2] == 2 * 39
    for one, another in zip(eager.buffers(), other.buffers(), strict=True):  # the measures and the tally too
        torch.testing.assert_close(one, another)


class Launches(TorchDispatchMode):
    """Notes PyTorch's operations that compute something."""

    FREE = ("empty", "new_empty", "empty_like", "view", "t", "permute", "split", "select", "expand", "detach")

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.overloadpacket.__name__
        if name not in self.FREE:
            self.names.append(name)
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("folded", [False, True])
def test_a_step_is_kernels_and_products(monkeypatch, folded):
    monkeypatch.setattr(Projected, "_many", lambda *_: folded)
    layer = make(90, in_features=24, backend="triton").to(DEVICE)
    layer.step()
    monkeypatch.setattr(layer.faults, "look", lambda: None)  # on a CPU it looks at once
    if DEVICE == "cpu":
        from triton.runtime.interpreter import GridExecutor

        interpret = GridExecutor.__call__

        def unseen(*args, **kwargs):
            with _disable_current_modes():
                return interpret(*args, **kwargs)

        monkeypatch.setattr(GridExecutor, "__call__", unseen)
    hidden, target = torch.randn(40, 24, device=DEVICE), torch.randint(0, 90, (40,), device=DEVICE)
    with Launches() as forward:
        loss = layer(hidden.requires_grad_(), target).loss
    with Launches() as backward:
        torch.autograd.grad(loss, [hidden, *layer.parameters()])
    # Of the projection, then of the clusters, whose biases are two; folded, one projection is of the clusters, and two
    # gradients meet.
    assert forward.names == ["mm"] * (1 + folded) + ["add", "addmm"]
    assert sorted(backward.names) == sorted(["ones_like", "mul"] + ["mm"] * (4 + folded) + ["addmm_"] * folded)
