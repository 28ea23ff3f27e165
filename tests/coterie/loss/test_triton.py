"""The fused loss against the reference; without a GPU its kernels run in Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")

from coterie.kernels import grouping as grouping_kernel
from coterie.kernels import products, softmax, statistic, summary
from coterie.loss import grouping, reference
from coterie.loss import triton as fused
from tests.coterie.kernels.batches import (
    DEVICE,
    N_CLUSTERS,
    N_WORDS,
    SIZES,
    TOLERANCE,
    seats,
)

pytestmark = pytest.mark.usefixtures("interpreter", "new_memory_is_nan")

LOG_PROBS = ("cluster", "word", "mean_cluster", "mean_word")
RESULTS = (*LOG_PROBS, "hidden", "word_hidden", "cluster_weight", "cluster_bias", "weight", "bias")


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
            draw(tokens, width * (1 + (both is True)), dtype=dtype),
            draw(tokens, width, dtype=dtype) if both == "apart" else None,
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


@pytest.mark.parametrize(
    "tokens, width, both, bias",
    [
        (1, 100, True, True),
        (37, 64, True, False),
        (37, 64, False, True),
        (37, 507, "apart", True),
        (37, 507, False, False),
        (60, 1100, True, True),
        (60, 1100, "apart", False),
    ],
)
def test_equals_the_reference(tokens, width, both, bias):
    Case(tokens, width, both=both, bias=bias).check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("both", [True, False, "apart"])
def test_half_precision_is_as_good_as_the_reference(both, dtype):
    Case(37, 100, both=both, dtype=dtype).check()


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
    assert all(torch.equal(cast[name], narrow[name].to(cast[name].dtype)) for name in cast)


@pytest.mark.parametrize("targets, both", [("one cluster", True), ("one cluster", "apart"), ("none", False)])
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
    for name in exact.keys() - set(LOG_PROBS):
        torch.testing.assert_close(ours[name], exact[name], rtol=1e-4, atol=1e-5)


def test_loops_that_these_sizes_would_pass_once(monkeypatch):
    small = products.Tiles(tokens=16, words=16, columns=16, num_warps=4, num_stages=2)
    for name in ("LOGITS", "GRAD_HIDDEN", "GRAD_WEIGHT"):
        monkeypatch.setattr(products, name, small)
    monkeypatch.setattr(products, "BLOCK_CLUSTERS", 2)
    monkeypatch.setattr(products, "SUM_TOKENS", 16)
    monkeypatch.setattr(products, "SUM_CLUSTERS", 4)
    monkeypatch.setattr(softmax, "BLOCK", 4)
    monkeypatch.setattr(softmax, "ROWS", 2)
    Case(35, 24).check()


def test_any_strides():
    case = Case(37, 33, both="apart")
    for k in (0, 1, 2, 4):
        case.inputs[k] = case.inputs[k].T.contiguous().T
        assert case.inputs[k].stride(1) != 1
    case.check()


def test_weights_that_are_not_finite_stay_in_their_cluster():
    case = Case(37, 40)
    lost = case.partition.members(int(case.partition.cluster_of[0]))  # word 0 is what a masked load would read
    case.inputs[4][lost] = torch.nan
    case.target[torch.isin(case.target, lost)] = -1
    case.grouping = grouping.group(case.target, case.partition)
    assert all(x.isfinite().all() for x in case.run(fused.two_level).values())


def test_no_tokens_is_not_an_error():
    case = Case(0, 32)
    found = case.run(fused.two_level)
    assert [found[name].shape for name in LOG_PROBS] == [(0,)] * 4
    assert all(x.eq(0).all() for name, x in found.items() if name not in LOG_PROBS)
    assert found["weight"].shape == (N_WORDS, 32)


def test_two_runs_agree_to_the_last_bit():
    case = Case(70, 48, dtype=torch.bfloat16)
    first, second = case.run(fused.two_level), case.run(fused.two_level)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_float64_is_refused():
    with pytest.raises(TypeError, match="float64"):
        Case(3, 16, dtype=torch.float64).run(fused.two_level)


def test_compiles_as_one_graph():
    case = Case(37, 32)
    eager = case.run(fused.two_level, use=(0, 1))
    compiled = case.run(torch.compile(fused.two_level, fullgraph=True, backend="aot_eager"), use=(0, 1))
    assert all(torch.equal(eager[name], compiled[name]) for name in eager)


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
