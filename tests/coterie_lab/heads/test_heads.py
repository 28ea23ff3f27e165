"""Every head of the registry keeps one contract; each is what an independent dense reference says it is."""

import heapq

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from coterie import Partition
from coterie_lab.heads import HEADS, FullSoftmax, build, register
from coterie_lab.heads.huffman import huffman_paths
from coterie_lab.heads.two_level import frequency_bins
from tests.coterie_lab.heads.samples import COUNTS, MATERIAL, WORDS, D, V, make, problem

NAMES = [name for name in HEADS if name != "full-compiled"]  # the same forward; it needs a compiler
SAMPLED = ("importance", "nce", "cnn")
DENSE = ("full", "full-chunked", "importance", "nce", "hsm-huffman", "differentiated", "adaptive", "cnn")


@pytest.mark.parametrize("name", NAMES)
def test_answers_agree_with_one_normalised_distribution(name):
    head = make(name).eval()
    for leading in ((), (7,), (3, 4), (2, 3, 2), (0,), (2, 0)):
        hidden, target = problem(*leading)
        output, loss = head(hidden, target)
        log_prob = head.log_prob(hidden)
        torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(leading))
        expected = log_prob.gather(-1, target.clamp(min=0)[..., None]).squeeze(-1)
        expected = torch.where(target == -100, 0.0, expected)
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(loss, -expected.sum() / max(int((target >= 0).sum()), 1))
        assert torch.equal(head.predict(hidden), log_prob.argmax(-1))
        torch.testing.assert_close(head.topk(hidden, 3)[0], log_prob.topk(3)[0])
        assert torch.equal(head.sample(hidden, top_k=1), head.predict(hidden))


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_learns_from_every_batch(name):
    head = make(name)
    hidden, target = problem(3, 4)
    hidden.requires_grad_()
    output, loss = head(hidden, target)
    assert output.shape == target.shape
    assert output[0, 0] == 0
    loss.backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in head.parameters())
    assert not hidden.grad[0, 0].any()
    assert hidden.grad[0, 1].any()
    for given in (hidden, hidden.detach().bfloat16().requires_grad_()):
        head.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = head(given, target).loss
        assert loss.dtype == torch.float32
        loss.backward()
        assert all(bool(parameter.grad.isfinite().all()) for parameter in head.parameters())
        assert given.grad.any()
        head.eval()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert head(given, target).loss.isfinite()
        head.train()


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_with_nothing_to_predict_changes_nothing(name):
    head = make(name)
    hidden, target = problem(3)
    hidden.requires_grad_()
    loss = head(hidden, torch.full_like(target, -100)).loss
    assert loss == 0
    loss.backward()
    for gradient in (hidden.grad, *(parameter.grad for parameter in head.parameters())):
        assert not gradient.any()  # and none is missing


@pytest.mark.parametrize("name", [*SAMPLED, "hsm-huffman", "differentiated", "full"])
def test_a_step_can_be_recorded_as_a_graph(name):
    """Nothing in it depends on the data but the data: neither shapes nor what the host does."""
    head = make(name, **({"proposal": "bigram"} if name in SAMPLED else {}))
    hidden, target = problem(3, 4)
    assert head.graphable
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        loss = head(mode.from_tensor(hidden.requires_grad_()), mode.from_tensor(target)).loss
        assert torch.autograd.grad(loss, list(head.parameters()), materialize_grads=False)


def test_what_looks_at_the_data_says_so():
    head = make("adaptive")
    assert not head.graphable
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, pytest.raises((DynamicOutputShapeException, RuntimeError)):
        head(mode.from_tensor(torch.randn(3, D)), mode.from_tensor(torch.tensor([1, 2, -100])))


# -- each beside its reference, in float64 -----------------------------------------------------------------------------


def full_logits(head, hidden):
    return hidden @ head.weight.T + head.bias


def differentiated_logits(head, hidden):
    matrix, bias, start = torch.zeros(V, D, dtype=torch.float64), torch.zeros(V, dtype=torch.float64), 0
    order = sorted(range(V), key=lambda word: (-int(COUNTS[word]), word))
    rank = 0
    for band in head.bands:
        n, width = band.weight.shape
        rows = torch.tensor(order[rank : rank + n])
        placed = F.pad(band.weight, (start, D - start - width))  # zero outside of the band's piece
        matrix = matrix.index_add(0, rows, placed)
        bias = bias.index_add(0, rows, band.bias)
        rank, start = rank + n, start + width
    return hidden @ matrix.T + bias


def cnn_logits(head, hidden):
    rows = []
    for word in WORDS:  # one word at a time, one filter at a time
        letters = [257, *(byte + 1 for byte in word.encode()), 258]
        letters += [0] * (24 - len(letters))
        table = head.projection.bytes.weight
        bytes_of = torch.stack([table[letter] if letter else table[0].detach() for letter in letters])  # (M, E)
        found = []
        for kind in head.projection.filters:
            width = kind.weight.shape[2]
            places = [
                torch.einsum("ek,oek->o", bytes_of[at : at + width].T, kind.weight) + kind.bias
                for at in range(24 - width + 1)
            ]
            found.append(torch.stack(places).max(0).values)
        x = torch.cat(found).tanh()
        highway = head.projection.highway.weight @ x + head.projection.highway.bias
        gate = torch.sigmoid(highway[len(x) :])
        x = gate * highway[: len(x)].clamp(min=0) + (1 - gate) * x
        own = head.projection.correct.weight @ head.correction[WORDS.index(word)]
        rows.append(head.projection.out.weight @ x + head.projection.out.bias + own)
    every = torch.stack(rows)
    return hidden @ every[:, :D].T + every[:, D]


def huffman_log_prob(head, hidden):
    columns = []
    for path, turn in zip(head.path.tolist(), head.turn.tolist(), strict=True):
        total = 0
        for node, way in zip(path, turn, strict=True):
            if way:
                score = hidden @ head.nodes[node] + head.node_bias[node]
                total = total + torch.log(torch.sigmoid(way * score))
        columns.append(total)
    return torch.stack(columns, -1)


REFERENCES = {
    "full": lambda head, hidden: full_logits(head, hidden).log_softmax(-1),
    "full-chunked": lambda head, hidden: full_logits(head, hidden).log_softmax(-1),
    "importance": lambda head, hidden: full_logits(head, hidden).log_softmax(-1),
    "nce": lambda head, hidden: full_logits(head, hidden).log_softmax(-1),
    "differentiated": lambda head, hidden: differentiated_logits(head, hidden).log_softmax(-1),
    "hsm-huffman": huffman_log_prob,
    "cnn": lambda head, hidden: cnn_logits(head, hidden).log_softmax(-1),
    "adaptive": lambda head, hidden: head.inner.log_prob(hidden),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_losses_and_gradients_are_those_of_the_dense_reference(name):
    head = make(name, **({"widths": [1, 3], "features": 3} if name == "cnn" else {})).double().eval()
    hidden, target = problem(9)
    hidden = hidden.double().requires_grad_()
    inputs = [hidden, *head.parameters()]
    log_prob = REFERENCES[name](head, hidden)
    expected = -log_prob[1:].gather(1, target[1:, None]).mean()
    loss = head(hidden, target).loss
    torch.testing.assert_close(loss, expected, atol=1e-9, rtol=0)
    torch.testing.assert_close(head.log_prob(hidden), log_prob, atol=1e-9, rtol=0)
    found = torch.autograd.grad(loss, inputs, materialize_grads=True)
    for mine, reference in zip(found, torch.autograd.grad(expected, inputs, materialize_grads=True), strict=True):
        torch.testing.assert_close(mine, reference, atol=1e-9, rtol=0)


# -- what is particular to one of them ---------------------------------------------------------------------------------


def test_huffman_paths_are_as_short_as_they_can_be():
    for counts in (COUNTS, torch.randint(0, 50, (37,)), torch.tensor([3, 3]), 2 ** torch.arange(12)):
        heap, least = sorted(counts.tolist()), 0
        while len(heap) > 1:
            joined = heapq.heappop(heap) + heapq.heappop(heap)
            least += joined
            heapq.heappush(heap, joined)
        path, turn = huffman_paths(counts)
        assert int((counts[:, None] * turn.abs()).sum()) == least
        assert bool((turn.abs().diff(dim=1) <= 0).all())  # what is empty is last
        assert path[:, 0].unique().tolist() == [len(counts) - 2]  # and the root first


def test_bins_hold_like_shares_of_the_text_or_of_its_roots():
    counts = (100_000 / torch.arange(1, 1001)).long()
    by_frequency, by_root = (frequency_bins(counts, 20, by) for by in ("frequency", "root"))
    mass = torch.zeros(20, dtype=torch.int64).index_add_(0, by_frequency.cluster_of, counts)
    assert int(mass.max()) <= max(int(counts[0]), 2 * int(counts.sum()) // 20)
    assert torch.equal(by_frequency.cluster_of, by_frequency.cluster_of.sort().values)
    root = torch.zeros(20, dtype=torch.float64).index_add_(0, by_root.cluster_of, counts.double().sqrt())
    assert float(root.max()) < 1.5 * float(root.mean())
    assert int(by_root.sizes.max()) < int(by_frequency.sizes.max()) / 2


def test_a_partition_from_a_file_stays(tmp_path):
    partition = Partition(torch.arange(V) % 7, 7)
    partition.save(tmp_path / "clusters.json", WORDS)
    options = {"partition": str(tmp_path / "clusters.json"), "reorganize_every": None}
    head = make("self-organized", **options)
    hidden, target = problem(4)
    head(hidden, target).loss.backward()
    head.step()
    assert torch.equal(head.partition.cluster_of, partition.cluster_of)
    for name in ("self-organized-paper", "random-clusters", "hsm-frequency", "hsm-similarity"):
        assert make(name, partition=options["partition"]).n_clusters == 7


def test_a_head_of_ones_own_is_given_what_it_names():
    @register("ones-own")
    class OnesOwn(torch.nn.Module):
        def __init__(self, in_features, n_classes, counts, vocabulary=None, depth=1):
            super().__init__()
            self.given = (in_features, n_classes, counts, vocabulary, depth)

    try:
        assert build("ones-own", D, V, COUNTS, MATERIAL, depth=3).given == (D, V, COUNTS, WORDS, 3)
        assert build("ones-own", D, V, COUNTS).given == (D, V, COUNTS, None, 1)
        with pytest.raises(ValueError, match="already"):
            register("ones-own")(OnesOwn)
    finally:
        del HEADS["ones-own"]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("cnn", {}, "need vocabulary=, the 50 words; got none"),
        ("cnn", {"vocabulary": WORDS[:3]}, "got 3 of them"),
        ("cnn", {"vocabulary": WORDS, "widths": [30]}, "widths must be from 1 to 24"),
        ("cnn", {"vocabulary": WORDS, "correction": -1}, "correction must be 0 or more numbers for each word; got -1"),
        ("importance", {"proposal": "bigram"}, "needs the training text"),
        ("importance", {"proposal": "trigram"}, "proposal must be"),
        ("importance", {"samples": 0}, "samples must be at least 1"),
        ("importance", {"samples": 2.5}, "samples must be a whole number; got 2.5"),
        ("nce", {"normalizer": float("nan")}, "normalizer must be a finite number"),
        ("hsm-frequency", {"n_clusters": 0}, "n_clusters must be from 1 to n_classes = 50; got 0"),
        ("adaptive", {"div_value": 8}, "vectors of no width"),
        *((name, {"ignore_index": None}, "ignore_index must be a whole number") for name in DENSE if name != "cnn"),
        ("cnn", {"vocabulary": WORDS, "ignore_index": None}, "ignore_index must be a whole number"),
        ("hsm-similarity", {}, "need vectors="),
        ("hsm-similarity", {"vectors": torch.randn(3, 4)}, "one row for each of the 50 words"),
        ("hsm-similarity", {"vectors": torch.zeros(V, 4)}, "a vector other than zero"),
        ("hsm-frequency", {"by": "rank"}, "by must be"),
        ("differentiated", {"cutoffs": [20, 10]}, "cutoffs must ascend"),
        ("differentiated", {"widths": [4, 4]}, "3 bands need as many widths"),
        ("hsm-huffman", {"depth": 3}, "the head 'hsm-huffman' has no option 'depth': leave it out"),
        ("adaptive", {"div_value": 0}, "cannot be built with"),
        ("hsm-similarity", {"vectors": 0}, "cannot be built with"),
        ("self-organized", {"partition": "nowhere.json"}, r"nowhere\.json does not exist: give a file"),
        ("hsm-similarity", {"vectors": "nowhere.npy"}, r"nowhere\.npy does not exist: give a file"),
        ("full", {"biases": "zero"}, "biases must start from the 'counts' or at 'random'; got 'zero'"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(name, options, said):
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        build(name, D, V, COUNTS, **options)


@pytest.mark.parametrize("name", NAMES)
def test_targets_are_class_numbers_one_for_each_vector(name):
    head, (hidden, target) = make(name).eval(), problem(4, 2)
    torch.testing.assert_close(head(hidden, target.int()), head(hidden, target))
    for mode in (True, False):
        head.train(mode)
        for wrong in (target.T, target[0], target.flatten(), target.double()):
            with pytest.raises(ValueError, match="target must be class numbers in hidden's leading shape"):
                head(hidden, wrong)


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_answered_is_refused(name):
    head, (hidden, _) = make(name).eval(), problem(3)
    for k in (0, -1, V + 1):
        with pytest.raises(ValueError, match=f"k must be from 1 to n_classes = {V}; got {k}"):
            head.topk(hidden, k)
        with pytest.raises(ValueError, match=f"top_k must be from 1 to n_classes = {V}; got {k}"):
            head.sample(hidden, top_k=k)
    for temperature in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="temperature must be finite and not negative"):
            head.sample(hidden, temperature)
    for mass in (0.0, -0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="top_p must be above 0 and at most 1"):
            head.sample(hidden, top_p=mass)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("hsm-similarity", "cnn")])
@pytest.mark.parametrize("classes, width", [(2, 16), (3, 16), (50, 8), (50, 3)])
def test_small_vocabularies_and_narrow_layers_need_no_options(name, classes, width):
    head = build(name, width, classes, torch.arange(1, classes + 1).flip(0)).eval()
    log_prob = head.log_prob(torch.randn(5, width))
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(5))
    assert all(parameter.numel() for parameter in head.parameters())


def test_an_older_torch_is_told_what_it_lacks(monkeypatch):
    monkeypatch.delattr(F, "linear_cross_entropy", raising=False)
    with pytest.raises(ValueError, match="this torch lacks"):
        build("full-chunked", D, V, COUNTS)


def test_an_ignored_class_is_the_class_and_not_the_word_of_that_rank():
    head = build("differentiated", 8, 10, torch.tensor([1, 9, 5, 5, 4, 4, 3, 3, 2, 2]), ignore_index=0).double()
    hidden, target = torch.randn(3, 8, dtype=torch.float64), torch.tensor([0, 1, 2])  # word 1 is of rank 0
    output = head(hidden, target).output
    expected = head.log_prob(hidden).gather(1, target[:, None]).squeeze(1)
    assert output[0] == 0
    torch.testing.assert_close(output[1:], expected[1:])


def test_the_full_softmax_smooths_as_torch_does():
    torch.manual_seed(0)
    head = FullSoftmax(8, 12, label_smoothing=0.2)
    hidden, target = torch.randn(3, 5, 8), torch.randint(0, 12, (3, 5))
    target[0, 0] = -100
    output, loss = head(hidden, target)
    logits = torch.nn.Linear.forward(head, hidden)
    expected = F.cross_entropy(logits.flatten(0, 1), target.flatten(), label_smoothing=0.2)
    torch.testing.assert_close(loss, expected)
    used = target != -100
    plain = logits.log_softmax(-1).gather(-1, target.clamp(min=0)[..., None]).squeeze(-1)
    torch.testing.assert_close(output, torch.where(used, plain, 0.0))  # what it is worth, not what it is trained on
    with pytest.raises(ValueError, match="label_smoothing must be at least 0 and below 1; got 1"):
        FullSoftmax(8, 12, label_smoothing=1.0)


@pytest.mark.parametrize("name", ["full", "full-compiled", "full-chunked", "importance", "nce"])
def test_biases_from_the_counts_make_a_head_as_good_as_counting(name):
    head = build(name, D, V, COUNTS, MATERIAL).eval()
    counted = ((COUNTS + 1) / (COUNTS + 1).sum()).log().to(torch.float32)
    torch.testing.assert_close(head.log_prob(torch.zeros(1, D))[0], counted)
    if name == "nce":  # in training nothing is normalised but by what it starts with
        output = head.train()(torch.zeros(V, D), torch.arange(V)).output
        torch.testing.assert_close(output, counted)
    head.bias.data.zero_()
    head.reset_parameters()
    torch.testing.assert_close(head.log_prob(torch.zeros(1, D))[0], counted)
    by_chance = build(name, D, V, COUNTS, MATERIAL, biases="random")
    assert by_chance.bias.abs().max() <= D**-0.5  # as torch has it
    with torch.device("meta"):  # counts are read where they are
        assert build(name, D, V, COUNTS, MATERIAL).bias.is_meta
