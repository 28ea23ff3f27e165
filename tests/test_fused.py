"""The Triton kernels against what they replace; without a GPU they run in Triton's interpreter."""

import copy
import os

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
pytest.importorskip("triton")

from coterie import grouping, measures
from coterie.faults import Faults
from coterie.kernels import grouping as grouping_kernel
from coterie.kernels import products, softmax, statistic, summary
from coterie.loss import fused, reference
from coterie.partition import Partition
from coterie.statistics import MeanHidden
from tests.layers import make

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = (4, 0, 1, 66, 0, 13, 70)  # words of each cluster: empty, alone, full; an odd number of them
N_WORDS, N_CLUSTERS = sum(SIZES), len(SIZES)
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}  # of the largest value
DTYPES = list(TOLERANCE)
LOG_PROBS = ("cluster", "word", "mean_cluster", "mean_word")
RESULTS = (*LOG_PROBS, "hidden", "cluster_weight", "cluster_bias", "weight", "bias")


@pytest.fixture(autouse=True, scope="module")
def _interpreter_knows_bfloat16():
    """The interpreter keeps bfloat16 as bits; its `dot` multiplies the bits, and it rounds towards zero."""
    if DEVICE == "cuda":
        yield
        return
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    dot, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def floats(x):
        if x.dtype.scalar != tl.bfloat16:
            return x
        return TensorHandle(torch.tensor(x.data).view(torch.bfloat16).float().numpy(), tl.float32)

    def rounded(self, x, dtype):
        if (x.dtype.scalar, dtype.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, x, dtype)
        return TensorHandle(torch.tensor(x.data).bfloat16().view(torch.uint16).numpy(), tl.bfloat16)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            InterpreterBuilder, "create_dot", lambda self, a, b, *rest: dot(self, floats(a), floats(b), *rest)
        )
        patch.setattr(InterpreterBuilder, "cast_impl", rounded)
        yield


@pytest.fixture(autouse=True)
def _new_memory_is_nan():
    """Whatever a kernel should have written and has not is then seen."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def seats(generator=None):
    cluster_of = torch.repeat_interleave(torch.arange(N_CLUSTERS), torch.tensor(SIZES))
    return Partition(cluster_of[torch.randperm(N_WORDS, generator=generator)], N_CLUSTERS, capacity=70).to(DEVICE)


class Case:
    """A batch, and what a two-level loss makes of it."""

    def __init__(
        self, tokens, width, *, both=True, bias=True, dtype=torch.float32, weights=None, seed=0, targets="all"
    ):
        g = torch.Generator().manual_seed(seed)
        weights = weights or dtype

        def draw(*shape, dtype=weights, scale=1.0):
            return (torch.randn(*shape, generator=g) * scale).to(dtype).to(DEVICE)

        self.partition = seats(g)
        self.inputs = [
            draw(tokens, width * (1 + both), dtype=dtype),
            draw(N_CLUSTERS, width, scale=width**-0.5),
            draw(N_CLUSTERS) if bias else None,
            draw(N_WORDS, width, scale=width**-0.5),
            draw(N_WORDS) if bias else None,
        ]
        target = torch.randint(-1 if tokens > 1 else 0, N_WORDS, (tokens,), generator=g)
        if targets == "one cluster":
            target = self.partition.members(3).cpu()[torch.randint(0, SIZES[3], (tokens,), generator=g)]
        elif targets == "none":
            target = torch.full_like(target, -1)
        self.target = target.to(DEVICE)
        self.grouping = grouping.group(self.target, self.partition)
        self.grads = torch.randn(4, tokens, generator=g).to(DEVICE)

    def run(self, two_level, dtype=None, use=(0, 1, 2, 3)):
        """The four results and the gradients of the inputs, by name."""
        inputs = [
            None if x is None else x.detach().to(dtype or x.dtype).clone(memory_format=torch.preserve_format)
            for x in self.inputs
        ]
        given = [x.requires_grad_() for x in inputs if x is not None]
        results = two_level(*inputs, self.target, self.partition, self.grouping)
        loss = sum((results[k] * self.grads[k]).sum() for k in use)
        grads = iter(torch.autograd.grad(loss, given, materialize_grads=True))
        values = [*(x.detach() for x in results), *(None if x is None else next(grads) for x in inputs)]
        return {name: x for name, x in zip(RESULTS, values, strict=True) if x is not None}

    def check(self, autocast=None, **options):
        """|ours - float64| <= |the reference in our dtype - float64| + tolerance, for everything."""
        with torch.autocast(DEVICE, dtype=autocast, enabled=autocast is not None):
            ours = self.run(fused.two_level, **options)
            naive = self.run(reference.two_level, **options)
        exact = self.run(reference.two_level, torch.float64, **options)
        tolerance = TOLERANCE[autocast or self.inputs[0].dtype]
        assert ours.keys() == exact.keys()
        for name, x in exact.items():
            assert ours[name].dtype == naive[name].dtype, name
            assert ours[name].shape == x.shape, name
            allowed = (naive[name] - x).abs().max() + tolerance * x.abs().max().clamp(min=1e-3)
            assert ((ours[name] - x).abs() <= allowed).all(), name  # false for a NaN


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("tokens, width", [(1, 100), (37, 507), (37, 64)])
def test_equals_the_reference(tokens, width, both, bias):
    Case(tokens, width, both=both, bias=bias).check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("tokens, width", [(1, 64), (37, 100)])
def test_half_precision_is_as_good_as_the_reference(tokens, width, both, dtype):
    Case(tokens, width, both=both, dtype=dtype).check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("hidden", ["half", "float32"])
def test_autocast_keeps_float32_weights(dtype, hidden):
    Case(37, 100, dtype=dtype if hidden == "half" else torch.float32, weights=torch.float32).check(autocast=dtype)


def test_autocast_narrows_float32_hidden_vectors():
    case = Case(37, 64)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        cast = case.run(fused.two_level)
    case.inputs[0] = case.inputs[0].bfloat16()
    narrow = case.run(fused.two_level)
    assert all(torch.equal(cast[name], narrow[name].to(cast[name].dtype)) for name in RESULTS)


@pytest.mark.parametrize("targets", ["one cluster", "none"])
@pytest.mark.parametrize("both", [True, False])
def test_all_tokens_in_one_cluster_or_in_none(targets, both):
    Case(70, 32, both=both, targets=targets).check()


@pytest.mark.parametrize("use", [(0, 1), (1,), (2,)])
def test_results_may_go_unused(use):
    Case(37, 32).check(use=use)


def test_gradients_may_be_one_number_expanded():
    case = Case(37, 32)
    case.grads = torch.ones(4, 37, device=DEVICE)

    def expanded(*inputs):
        # What a sum sends back: one number, stride 0, in place of the product's gradient.
        return tuple(x.sum() / 37 for x in fused.two_level(*inputs))

    ours, exact = case.run(expanded), case.run(reference.two_level)
    for name in RESULTS[4:]:
        torch.testing.assert_close(ours[name], exact[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(2))
def test_loops_that_these_sizes_would_pass_once(monkeypatch, seed):
    small = products.Tiles(tokens=16, words=16, columns=16, num_warps=4, num_stages=2)
    for name in ("LOGITS", "GRAD_HIDDEN", "GRAD_WEIGHT"):
        monkeypatch.setattr(products, name, small)
    monkeypatch.setattr(products, "BLOCK_CLUSTERS", 2)
    monkeypatch.setattr(products, "SUM_TOKENS", 16)
    monkeypatch.setattr(products, "SUM_CLUSTERS", 4)
    monkeypatch.setattr(softmax, "BLOCK", 4)
    monkeypatch.setattr(softmax, "ROWS", 2)
    Case(51, 40, seed=seed).check()


def test_any_strides():
    case = Case(37, 33)
    for k in (0, 1, 3):
        case.inputs[k] = case.inputs[k].T.contiguous().T
    assert case.inputs[0].stride(1) != 1
    case.check()


def test_weights_that_are_not_finite_stay_in_their_cluster():
    case = Case(37, 40)
    lost = case.partition.members(int(case.partition.cluster_of[0]))  # word 0 is what a masked load would read
    case.inputs[3][lost] = torch.nan
    case.target[torch.isin(case.target, lost)] = -1
    case.grouping = grouping.group(case.target, case.partition)
    assert all(x.isfinite().all() for x in case.run(fused.two_level).values())


def test_no_tokens_is_not_an_error():
    case = Case(0, 32)
    found = case.run(fused.two_level)
    assert [found[name].shape for name in LOG_PROBS] == [(0,)] * 4
    assert all(found[name].eq(0).all() for name in RESULTS[4:])
    assert found["weight"].shape == (N_WORDS, 32)


def test_two_runs_agree_to_the_last_bit():
    case = Case(70, 100, dtype=torch.bfloat16)
    first, second = case.run(fused.two_level), case.run(fused.two_level)
    assert all(torch.equal(first[name], second[name]) for name in RESULTS)


def test_float64_is_refused():
    with pytest.raises(TypeError, match="float64"):
        Case(3, 16, dtype=torch.float64).run(fused.two_level)


def test_compiles_as_one_graph():
    case = Case(37, 32)
    eager = case.run(fused.two_level, use=(0, 1))
    compiled = case.run(torch.compile(fused.two_level, fullgraph=True, backend="aot_eager"), use=(0, 1))
    assert all(torch.equal(eager[name], compiled[name]) for name in RESULTS)


@pytest.mark.parametrize("bias", [True, False])
def test_operators_keep_their_promises(bias):
    case = Case(5, 16, bias=bias)
    p = case.partition
    inputs = [None if x is None else x.requires_grad_() for x in case.inputs]
    index = (case.target, *case.grouping, p.cluster_of, p.words, p.offsets)
    torch.library.opcheck(fused._two_level.op, (*inputs, *index, p.capacity), test_utils=CHECKS)
    tally = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    torch.library.opcheck(grouping_kernel._usable.op, (tally, case.target, p.position, -100), test_utils=CHECKS)
    torch.library.opcheck(grouping_kernel._group.op, (case.grouping.place.int(), p.offsets), test_utils=CHECKS)
    log_p = torch.randn(2, 5, device=DEVICE, requires_grad=True)
    torch.library.opcheck(summary._summarize.op, (*log_p, case.grouping.starts[-1], None, None), test_utils=CHECKS)
    total, weight = torch.zeros(N_WORDS, 16, device=DEVICE), torch.zeros(N_WORDS, device=DEVICE)
    counts = torch.ones(N_WORDS, dtype=torch.int64, device=DEVICE)
    sample = case.inputs[0].detach()[:, :16]
    remember = (total, weight, sample, case.target, case.grouping.order, case.grouping.place, counts)
    sound = torch.tensor(True, device=DEVICE)
    torch.library.opcheck(statistic._update.op, (*remember, sound, False), test_utils=CHECKS)


# Not the check that compiles with symbolic shapes: gradients beyond a graph are compared above.
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


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


def test_a_step_is_kernels_and_products(monkeypatch):
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
    assert forward.names == ["mm", "addmm"]
    assert backward.names == ["ones_like", "mul", "mm", "mm", "mm", "mm"]
