"""The fused loss against the reference; without a GPU its kernels run in Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")

from coterie.kernels import grouping as grouping_kernel
from coterie.kernels import products, softmax, statistic
from coterie.loss import triton as fused
from coterie.loss.dispatch import Books, by_reference
from coterie.loss.grouping import group
from coterie.loss.levels import Vectors
from tests.coterie.kernels.batches import (
    ALONE,
    DEVICE,
    N_CLUSTERS,
    N_WORDS,
    PLACES,
    SIZES,
    TOLERANCE,
    seats,
)

pytestmark = pytest.mark.usefixtures("interpreter", "new_memory_is_nan")

RESULTS = ("output", "even", "loss")
LEARNED = ("projection", "cluster_weight", "cluster_bias", "weight", "bias")
SEES = ("h", "a linear map", "folded", "relu")  # what the levels see of h


class Case:
    """A batch, and what a two-level loss makes of it."""

    def __init__(
        self, tokens, width, *, sees="a linear map", bias=True, dtype=torch.float32, weights=None, seed=0,
        targets="all", alone=True, places=PLACES,
    ):  # fmt: skip
        g = torch.Generator().manual_seed(seed)
        weights = weights or dtype

        def draw(*shape, dtype=weights, scale=1.0):
            return (torch.randn(*shape, generator=g) * scale).to(dtype).to(DEVICE)

        self.partition = seats(g, alone, places)
        self.sees = sees
        self.hidden = draw(tokens, width, dtype=dtype)
        self.vectors = Vectors(
            None if sees == "h" else draw(2 * width, width, scale=width**-0.5),
            "relu" if sees == "relu" else None,
            draw(N_CLUSTERS, width, scale=width**-0.5),
            draw(N_CLUSTERS) if bias else None,
            draw(N_CLUSTERS, dtype=torch.float32) if bias else None,
            draw(N_WORDS, width, scale=width**-0.5),
            draw(N_WORDS) if bias else None,
        )
        target = torch.randint(-1 if tokens > 1 else 0, N_WORDS, (tokens,), generator=g)
        if targets == "one cluster":
            target = self.partition.members(3).cpu()[torch.randint(0, SIZES[3], (tokens,), generator=g)]
        elif targets == "alone":
            target = self.partition.own.cpu()[torch.randint(0, ALONE, (tokens,), generator=g)]
        elif targets == "clustered":
            target[torch.isin(target, self.partition.own.cpu())] = -1
        elif targets == "none":
            target = torch.full_like(target, -1)
        self.target = target.to(DEVICE)
        self.grads = torch.randn(2, tokens, generator=g).to(DEVICE), 3.0

    def run(self, compute, dtype=None, use=RESULTS):
        """The three results, the gradients of all that is given and the measures, by name."""
        names = [name for name in LEARNED if getattr(self.vectors, name) is not None]
        given = {"hidden": self.hidden} | {name: getattr(self.vectors, name) for name in names}
        given = {
            name: x.detach().to(dtype or x.dtype).clone(memory_format=torch.preserve_format).requires_grad_()
            for name, x in given.items()
        }
        vectors = self.vectors._replace(**{name: given[name] for name in names})
        if dtype is not None and vectors.prior is not None:
            vectors = vectors._replace(prior=vectors.prior.to(dtype))
        sums, tally = (torch.ones(n, dtype=t, device=DEVICE) for n, t in ((3, torch.float64), (5, torch.int64)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fused, "LARGE", 0 if self.sees == "folded" else 2**23)
            batch = compute(given["hidden"], vectors, self.target, self.partition, Books(sums, tally, -1))
        results = {name: getattr(batch, name) for name in RESULTS}
        factors = dict(zip(RESULTS, (*self.grads[0], self.grads[1]), strict=True))
        total = sum((results[name] * factors[name]).sum() for name in use)
        grads = torch.autograd.grad(total, list(given.values()), materialize_grads=True)
        results = {name: x.detach() for name, x in results.items()}
        return results | {f"gradient of {name}": x for name, x in zip(given, grads, strict=True)} | {
            "sums": sums, "tally": tally
        }  # fmt: skip

    def check(self, autocast=None, **options):
        """|ours - float64| <= |the reference in our dtype - float64| + tolerance, for everything."""
        with torch.autocast(DEVICE, dtype=autocast, enabled=autocast is not None):
            ours = self.run(fused.compute, **options)
            naive = self.run(by_reference, **options)
        exact = self.run(by_reference, torch.float64, **options)
        tolerance = TOLERANCE[autocast or self.hidden.dtype]
        assert ours.keys() == exact.keys()
        for name, x in exact.items():
            assert ours[name].dtype == naive[name].dtype, name
            assert ours[name].shape == x.shape, name
            allowed = (naive[name] - x).abs().max() + tolerance * x.abs().max().clamp(min=1e-3)
            assert ((ours[name] - x).abs() <= allowed).all(), name  # false for a NaN


@pytest.mark.parametrize(
    "tokens, width, sees, bias, alone, places",
    [
        (1, 100, "a linear map", True, True, PLACES),
        (37, 64, "a linear map", False, True, PLACES),
        (37, 64, "h", True, True, ALONE),
        (37, 507, "relu", True, False, 0),
        (37, 507, "folded", False, False, PLACES),
        (37, 64, "folded", True, True, PLACES),
        (60, 1100, "a linear map", True, True, PLACES),
    ],
)
def test_equals_the_reference(tokens, width, sees, bias, alone, places):
    Case(tokens, width, sees=sees, bias=bias, alone=alone, places=places).check()


@pytest.mark.parametrize("sees, dtype", [*((sees, torch.bfloat16) for sees in SEES), ("a linear map", torch.float16)])
def test_half_precision_is_as_good_as_the_reference(sees, dtype):
    # The bound is one rounding more than the reference happens to need; one batch in fourteen needs two.
    Case(37, 100, sees=sees, dtype=dtype, seed=1).check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("hidden", ["half", "float32"])
def test_autocast_keeps_float32_weights(dtype, hidden):
    Case(37, 100, dtype=dtype if hidden == "half" else torch.float32, weights=torch.float32).check(autocast=dtype)


def test_autocast_narrows_float32_hidden_vectors():
    case = Case(37, 64)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        cast = case.run(fused.compute)
        case.hidden = case.hidden.bfloat16()
        narrow = case.run(fused.compute)
    assert all(torch.equal(cast[name], narrow[name].to(cast[name].dtype)) for name in cast)


@pytest.mark.parametrize(
    "sees, targets",
    [
        *((sees, "one cluster") for sees in SEES),
        ("folded", "none"),
        ("h", "alone"),
        ("folded", "alone"),
        ("a linear map", "clustered"),
    ],
)
def test_all_tokens_in_one_cluster_or_in_none_or_none_alone(sees, targets):
    Case(70, 32, sees=sees, targets=targets).check()


@pytest.mark.parametrize("use", [("output",), ("even",), ("loss",), ("loss", "output")])
def test_results_may_go_unused(use):
    Case(37, 32).check(use=use)


def test_gradients_may_be_one_number_expanded():
    case = Case(37, 32)
    case.grads = torch.ones(2, 37, device=DEVICE), 1.0

    def expanded(way):
        # What a sum sends back: one number, stride 0, in place of the product's gradient.
        def compute(*given):
            batch = way(*given)
            return batch._replace(output=batch.output.sum() / 37, even=batch.even.sum() / 37)

        return compute

    ours, exact = (case.run(expanded(way)) for way in (fused.compute, by_reference))
    for name in exact:
        torch.testing.assert_close(ours[name], exact[name], rtol=1e-4, atol=1e-5)


def test_loops_that_these_sizes_would_pass_once(monkeypatch):
    small = products.Tiles(tokens=16, words=16, columns=16, num_warps=4, num_stages=2)
    for name in ("LOGITS", "GRAD_HIDDEN", "GRAD_WEIGHT"):
        monkeypatch.setattr(products, name, small)
    monkeypatch.setattr(products, "BLOCK_CLUSTERS", 2)
    monkeypatch.setattr(products, "SUM_TOKENS", 16)
    monkeypatch.setattr(products, "SUM_CLUSTERS", 4)
    monkeypatch.setattr(softmax, "BLOCK", 4)
    monkeypatch.setattr(softmax, "SUMMED", 16)
    Case(35, 24).check()


@pytest.mark.parametrize("sees", SEES)
def test_any_strides(sees):
    case = Case(37, 33, sees=sees)
    case.hidden = case.hidden.T.contiguous().T
    turned = {name: x.T.contiguous().T for name, x in case.vectors._asdict().items() if name.endswith("weight")}
    case.vectors = case.vectors._replace(**turned)
    assert {x.stride(0) for x in (case.hidden, *turned.values())} == {1}
    case.check()


def test_vectors_need_not_be_one_stretch_of_memory():
    case = Case(37, 33)
    apart = {name: getattr(case.vectors, name).repeat_interleave(2)[::2] for name in ("cluster_bias", "prior", "bias")}
    expected = case.run(fused.compute)
    case.vectors = case.vectors._replace(**apart)
    assert all(torch.equal(found, expected[name]) for name, found in case.run(fused.compute).items())


@pytest.mark.parametrize("sees", SEES)
def test_a_backward_inside_an_autocast_is_not_rounded(sees):
    case = Case(37, 32, sees=sees)

    def within(*given):
        with torch.autocast(DEVICE, enabled=False):
            return fused.compute(*given)

    expected = case.run(fused.compute)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        found = case.run(within)
    for name in ("gradient of weight", "gradient of cluster_weight"):
        torch.testing.assert_close(found[name], expected[name])


def test_weights_that_are_not_finite_stay_in_their_cluster():
    case = Case(37, 40)
    lost = case.partition.members(int(case.partition.cluster_of[0]))  # word 0 is what a masked load would read
    case.vectors.weight[lost] = torch.nan
    case.target[torch.isin(case.target, lost)] = -1
    assert all(x.isfinite().all() for x in case.run(fused.compute).values())


@pytest.mark.parametrize("value, compiled", [(torch.inf, False), (torch.nan, True)])
def test_a_batch_that_is_not_finite_is_tallied_and_not_measured(value, compiled):
    case = Case(37, 16)
    case.hidden[20] = value
    case.target[20] = 3
    way = torch.compile(fused.compute, fullgraph=True, backend="aot_eager") if compiled else fused.compute
    found = case.run(way)
    assert not found["loss"].isfinite()
    assert found["sums"].tolist() == [1, 1, 1]
    assert found["tally"].tolist() == [1, 1, 2, 2, 1]


@pytest.mark.parametrize("sees", SEES)
def test_no_tokens_is_not_an_error(sees):
    found = Case(0, 32, sees=sees).run(fused.compute)
    assert [found[name].shape for name in RESULTS] == [(0,), (0,), ()]
    assert found["loss"] == 0
    assert found["tally"].tolist() == [1, 1, 1, 2, 1]
    assert all(x.eq(0).all() for name, x in found.items() if name.startswith("gradient"))


def test_two_runs_agree_to_the_last_bit():
    case = Case(70, 48, dtype=torch.bfloat16)
    first, second = case.run(fused.compute), case.run(fused.compute)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_float64_is_refused():
    with pytest.raises(TypeError, match="float64"):
        Case(3, 16, dtype=torch.float64).run(fused.compute)


@pytest.mark.parametrize("sees, bias", [("h", True), ("folded", True), ("relu", False)])
def test_compiles_as_one_graph(sees, bias):
    case = Case(37, 32, sees=sees, bias=bias)
    eager = case.run(fused.compute)
    compiled = case.run(torch.compile(fused.compute, fullgraph=True, backend="aot_eager"))
    for name in eager:
        torch.testing.assert_close(compiled[name], eager[name])


@pytest.mark.parametrize("bias", [True, False])
def test_operators_keep_their_promises(bias):
    case = Case(5, 16, bias=bias)
    p, (_, _, cluster_weight, cluster_bias, prior, weight, word_bias) = case.partition, case.vectors
    learned = [None if x is None else x.requires_grad_() for x in (cluster_weight, cluster_bias)]
    learned += [weight.requires_grad_(), None if word_bias is None else word_bias.requires_grad_(), prior]
    hidden, grouping = case.hidden.requires_grad_(), group(case.target, p)
    given = (hidden, hidden * 2, None, *learned, grouping.table, p.cluster_of, p.words, p.offsets, p.root_sizes)
    torch.library.opcheck(fused._levels.op, (*given, p.capacity), test_utils=CHECKS)
    results = [x.detach() for x in fused._levels.op(*given, p.capacity)]
    given = tuple(None if x is None else x.detach() for x in given)
    torch.library.opcheck(
        fused._gradients.op, (*results[:3], results[5:], *given), test_utils=("test_schema", "test_faketensor")
    )
    tally = torch.zeros(5, dtype=torch.int64, device=DEVICE)
    torch.library.opcheck(
        grouping_kernel._grouped.op, (tally, case.target, p.position, p.offsets, -100), test_utils=CHECKS
    )
    total, seen = torch.zeros(N_WORDS, 16, device=DEVICE), torch.zeros(N_WORDS, device=DEVICE)
    counts = torch.ones(N_WORDS, dtype=torch.int64, device=DEVICE)
    remember = (total, seen, case.hidden.detach(), grouping.table, counts)
    torch.library.opcheck(statistic._update.op, (*remember, torch.ones((), device=DEVICE), False), test_utils=CHECKS)


# Not the check that compiles with symbolic shapes: gradients beyond a graph are compared above.
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
