"""It goes where `nn.Linear` + `CrossEntropyLoss` or `nn.AdaptiveLogSoftmaxWithLoss` stood."""

import copy
import io
import pickle
import shutil

import pytest
import torch
from torch import nn

from coterie import SelfOrganizedSoftmax
from coterie.loss import levels
from tests.layers import WIDTH, make, with_empty_clusters, with_own_words


@pytest.mark.parametrize("make_head", [make, with_own_words])
def test_the_three_reductions_and_ignore_index(make_head):
    head = make_head(ignore_index=-1)
    hidden, target = torch.randn(4, 5, WIDTH), torch.randint(0, 53, (4, 5))
    target[0, :3] = -1
    used = target != -1
    log_p = head.log_prob(hidden).gather(-1, target.clamp(min=0)[..., None]).squeeze(-1)
    log_p = torch.where(used, log_p, 0.0)
    for reduction, expected in (
        ("none", -log_p), ("sum", -log_p.sum()), ("mean", -log_p.sum() / used.sum()),
    ):  # fmt: skip
        head.reduction = reduction
        output, loss = head(hidden, target)
        assert torch.allclose(loss, expected, atol=1e-5)
        assert torch.allclose(output, log_p, atol=1e-5)


@pytest.mark.parametrize("make_head", [make, with_own_words])
def test_a_batch_with_nothing_to_predict_has_loss_zero_and_zero_gradients(make_head):
    head = make_head()
    loss = head(torch.randn(4, WIDTH), torch.full((4,), -100)).loss
    loss.backward()
    assert loss.item() == 0
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in head.parameters())


@pytest.mark.parametrize("make_head", [make, with_empty_clusters, with_own_words])
@pytest.mark.parametrize("word", [0, 1])  # of those that may stand alone, and of a cluster
def test_every_parameter_has_a_gradient_at_every_step(make_head, word):
    head = make_head()
    head(torch.randn(1, WIDTH), torch.full((1,), word)).loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in head.parameters())


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_batch_computed_again_in_the_backward_is_counted_once(reentrant):
    plain, again = (make(60, counts=None, own_words=range(9)) for _ in range(2))
    again.load_state_dict(plain.state_dict())
    hidden, target = torch.randn(41, WIDTH, requires_grad=True), torch.randint(0, 60, (41,))
    plain(hidden, target).loss.backward()
    grad, hidden.grad = hidden.grad, None
    torch.utils.checkpoint.checkpoint(again, hidden, target, use_reentrant=reentrant)[1].backward()
    torch.testing.assert_close(hidden.grad, grad)
    torch.testing.assert_close(again.state_dict(), plain.state_dict())  # counts and statistic too
    assert again.measures() == plain.measures()
    assert again.tally.unstepped() == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "options",
    [{}, {"projection": False}, {"bias": False}, {"label_smoothing": 0.1}, {"own_words": 30, "label_smoothing": 0.1}],
)
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_autocast_takes_float32_and_returns_float32_losses(dtype, options, backend):
    head = make(200, backend=backend, **options)
    hidden, target = torch.randn(2, 9, WIDTH, requires_grad=True), torch.randint(0, 200, (2, 9))
    exact = head(hidden, target)
    with torch.autocast("cpu", dtype=dtype):
        out = head(hidden, target)
        log_p = head.log_prob(hidden)
        values, _ = head.topk(hidden, 5)
    assert out.loss.dtype == out.output.dtype == log_p.dtype == values.dtype == torch.float32
    assert torch.allclose(out.loss, exact.loss, rtol=0.03)
    out.loss.backward()
    assert all(p.grad.dtype == torch.float32 for p in head.parameters())
    assert torch.allclose(log_p.exp().sum(-1), torch.ones(2, 9), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("make_head", [make, with_own_words])
def test_to_dtype(make_head, dtype):
    head = make_head().to(dtype)
    out = head(torch.randn(5, WIDTH, dtype=dtype), torch.randint(0, 53, (5,)))
    out.loss.backward()
    assert out.loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert all(p.grad.dtype == dtype for p in head.parameters())


COMPILERS = ["aot_eager"] + (["inductor"] if shutil.which("g++") else [])


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_compiles_as_one_graph_and_learns_the_same(compiler, backend):
    torch._dynamo.reset()
    eager = make(label_smoothing=0.1, counts=None, own_words=[0, 52, *range(20, 30)], backend=backend)
    other = copy.deepcopy(eager)
    compiled = torch.compile(other, fullgraph=True, backend=compiler)
    for _ in range(3):
        hidden, target = torch.randn(3, 5, WIDTH), torch.randint(0, 53, (3, 5))
        target[0, 0] = -100
        losses = [module(hidden, target).loss for module in (eager, compiled)]
        assert torch.allclose(*losses, atol=1e-5)
        for head, loss in zip((eager, other), losses, strict=True):
            head.zero_grad()
            loss.backward()
        for p, q in zip(eager.parameters(), other.parameters(), strict=True):
            assert torch.allclose(p.grad, q.grad, atol=1e-5)
    for p, q in zip(eager.buffers(), other.buffers(), strict=True):
        assert torch.allclose(p, q, atol=1e-5)
    eager.reorganize()
    other.reorganize()
    assert torch.allclose(compiled(hidden, target).loss, eager(hidden, target).loss, atol=1e-5)


def test_words_are_chosen_under_a_compiler_without_compiling_again():
    torch._dynamo.reset()
    eager = make(100, counts=None)
    other = copy.deepcopy(eager)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    hidden, target = torch.randn(400, WIDTH), (torch.rand(400) ** 6 * 100).long()
    compiled(hidden, target).loss.backward()
    eager(hidden, target).loss.backward()
    for head in (eager, other):
        assert not head.partition.own.numel()
        head.reorganize()
        assert head.partition.own.numel()
        head.zero_grad()
    with torch.compiler.set_stance("fail_on_recompile"):
        found = compiled(hidden, target)
    expected = eager(hidden, target)
    torch.testing.assert_close(tuple(found), tuple(expected))
    for loss in (found.loss, expected.loss):
        loss.backward()
    torch.testing.assert_close([p.grad for p in other.parameters()], [p.grad for p in eager.parameters()])


def trained(**options):
    head = make(reorganize_every=2, **options)
    for _ in range(5):
        head(torch.randn(100, WIDTH), torch.randint(0, 53, (100,)))
        head.step()
    return head


def assert_same_layer(one, two):
    hidden, target = torch.randn(20, WIDTH), torch.randint(0, 53, (20,))
    assert torch.equal(one.partition.cluster_of, two.partition.cluster_of)
    for _ in range(3):
        assert torch.equal(one(hidden, target).loss, two(hidden, target).loss)
        assert one.step() == two.step()
    assert one.updates == two.updates
    assert torch.equal(one.partition.cluster_of, two.partition.cluster_of)
    assert torch.equal(one.statistic.total, two.statistic.total)


def saved(head, **options):
    buffer = io.BytesIO()
    torch.save(head.state_dict(), buffer)
    buffer.seek(0)
    fresh = make(reorganize_every=2, **options)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    return fresh


WAYS = [lambda head, **_: copy.deepcopy(head), lambda head, **_: pickle.loads(pickle.dumps(head)), saved]


@pytest.mark.parametrize("copied", WAYS)
@pytest.mark.parametrize("options", [{}, {"own_words": 6}, {"own_words": 6, "counts": None}])
def test_copies_after_reorganizing_go_on_alike(copied, options):
    head = trained(**options)
    assert len(head.partition.own) == options.get("own_words", 0)
    assert_same_layer(copied(head, **options), head)


@pytest.mark.parametrize("copied", WAYS)
@pytest.mark.parametrize("own_words", [None, 4])
def test_copies_that_have_not_chosen_their_words_yet_choose_the_same(copied, own_words):
    options = {"counts": None, "own_words": own_words}
    head, hidden = make(100, reorganize_every=2, **options), torch.randn(400, WIDTH)
    target = (torch.rand(400) ** 6 * 100).long()
    head(hidden, target)
    other = copied(head, n_classes=100, **options)
    for one in (head, other):
        one.reorganize()
        assert len(one.partition.own) == own_words if own_words else len(one.partition.own)
    assert_same_layer(other, head)


def test_state_dict_survives_a_prefix_and_strict_loading():
    outer = nn.Sequential(trained())
    fresh = nn.Sequential(make(reorganize_every=2))
    assert not fresh.load_state_dict(outer.state_dict(), strict=True).missing_keys
    assert_same_layer(fresh[0], outer[0])
    without = {key: value for key, value in outer.state_dict().items() if key != "0._extra_state"}
    with pytest.raises(RuntimeError, match=r"Missing key.*0\._extra_state"):
        fresh.load_state_dict(without)


def test_a_layer_that_was_assigned_anothers_state_has_its_own_clusters():
    first, second = make(100), make(100)
    second.load_state_dict(first.state_dict(), assign=True)
    before = first.partition.cluster_of.clone()
    second.statistic.total.normal_()
    second.statistic.weight.fill_(1.0)
    second.reorganize()
    assert torch.equal(first.partition.cluster_of, before)
    assert not torch.equal(second.partition.cluster_of, before)


def test_tied_to_an_embedding():
    embedding = nn.Embedding(53, WIDTH)
    head = make()
    head.weight = embedding.weight
    target = torch.randint(0, 53, (6,))
    head(embedding(torch.randint(0, 53, (6,))), target).loss.backward()
    with torch.no_grad():
        embedding.weight.zero_()
        head.bias.zero_()
    words = head.partition.members(0)
    in_cluster = head.log_prob(torch.randn(WIDTH))[words]
    assert torch.allclose(in_cluster, in_cluster[:1].expand_as(in_cluster), atol=1e-5)


def test_step_reorganizes_every_k_updates_also_under_gradient_accumulation():
    head = make(reorganize_every=3)
    for update in range(1, 10):
        for _ in range(4):
            head(torch.randn(20, WIDTH), torch.randint(0, 53, (20,))).loss.backward()
        assert (head.step() is not None) == (update % 3 == 0)


def test_reorganizing_says_what_moved():
    head = make()
    head(torch.randn(500, WIDTH), torch.randint(0, 53, (500,)))
    before = head.partition.cluster_of.clone()
    result = head.reorganize()
    moved = head.partition.cluster_of != before
    assert result.words_moved == int(moved.sum()) > 0
    assert result.share_of_words == pytest.approx(float(moved.float().mean()))
    assert result.share_of_mass == pytest.approx(float(head.counts[moved].sum() / head.counts.sum()))
    assert result.empty_clusters == int((head.partition.sizes == 0).sum())


def test_words_not_seen_keep_their_place():
    head = make(200)
    before = head.partition.cluster_of.clone()
    head(torch.randn(300, WIDTH), torch.randint(0, 60, (300,)))
    head.reorganize()
    assert torch.equal(head.partition.cluster_of[60:], before[60:])
    assert not torch.equal(head.partition.cluster_of[:60], before[:60])


def test_reorganizing_moves_no_parameter_and_keeps_the_optimizer():
    head = make()
    optimizer = torch.optim.Adam(head.parameters())
    head(torch.randn(100, WIDTH), torch.randint(0, 53, (100,))).loss.backward()
    optimizer.step()
    before = copy.deepcopy((head.weight.data, optimizer.state[head.weight]["exp_avg"]))
    assert head.reorganize().words_moved > 0
    assert torch.equal(head.weight, before[0])
    assert torch.equal(optimizer.state[head.weight]["exp_avg"], before[1])


def test_a_fixed_partition_remembers_nothing():
    head = make(reorganize_every=None)
    assert head.statistic is None
    before = head.partition.cluster_of.clone()
    for _ in range(3):
        head(torch.randn(10, WIDTH), torch.randint(0, 53, (10,))).loss.backward()
        assert head.step() is None
    assert torch.equal(head.partition.cluster_of, before)
    with pytest.raises(RuntimeError, match="reorganize_every=None"):
        head.reorganize()


def test_clusters_are_random_until_a_word_moves():
    head = make(own_words=5)
    assert head.partition.random
    assert make(partition=head.partition).partition.random
    head.reorganize()  # nothing is known yet
    assert head.partition.random
    other = make(own_words=5)
    head(torch.randn(500, WIDTH), torch.randint(0, 53, (500,)))
    assert head.reorganize().words_moved
    assert not head.partition.random
    other.load_state_dict(head.state_dict())
    assert not other.partition.random
    head.load_state_dict(make(own_words=5).state_dict())
    assert head.partition.random
    with pytest.warns(UserWarning, match="the partition is random and stays so"):
        make(partition=head.partition, reorganize_every=None)


def test_a_given_partition_is_copied():
    head = make()
    other = make(partition=head.partition)
    head(torch.randn(500, WIDTH), torch.randint(0, 53, (500,)))
    before = other.partition.cluster_of.clone()
    assert head.reorganize().words_moved > 0
    assert torch.equal(other.partition.cluster_of, before)


def test_as_in_paper():
    head = SelfOrganizedSoftmax.as_in_paper(WIDTH, 1000, torch.randint(1, 50, (1000,)), n_clusters=40)
    assert head.bias is None
    assert head.cluster_bias is None
    assert (head.activation, head.score, head.reorganize_every, head.n_clusters) == ("relu", "paper", 1000, 40)
    assert (type(head.statistic).__name__, head.statistic.smoothing) == ("Table", "paper")
    assert head.frequency_budget == 0.1
    assert SelfOrganizedSoftmax.as_in_paper(4, 44_370).n_clusters == 211


def test_a_layer_starts_as_documented():
    head = SelfOrganizedSoftmax(WIDTH, 53)
    assert torch.equal(levels.maps(head.vectors()), torch.eye(WIDTH).repeat(2, 1))
    bound = WIDTH**-0.5
    assert not head.bias.any()  # nothing is counted yet
    assert not head.prior.shift.any()
    for parameter in (head.weight, head.cluster_weight, head.cluster_bias):
        assert parameter.abs().max() <= bound
        assert parameter.std() > bound / 4
    activated = SelfOrganizedSoftmax(WIDTH, 53, activation="relu")
    assert levels.maps(activated.vectors()) is activated.projection
    assert bound / 4 < activated.projection.std() < bound


def test_reorganizing_inside_autocast_is_the_same():
    heads = []
    for autocast in (False, True):
        torch.manual_seed(7)
        head = make(2000, in_features=32)
        head(torch.randn(4000, 32), torch.arange(4000) % 2000)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            head.reorganize()
        heads.append(head)
    assert torch.equal(heads[0].partition.cluster_of, heads[1].partition.cluster_of)


def test_cluster_perplexity_falls_when_words_move_to_their_company():
    """Two groups of words, each always in its own context: one reorganization brings them together."""
    torch.manual_seed(1)
    directions = torch.randn(2, WIDTH)
    head = SelfOrganizedSoftmax(WIDTH, 8, torch.full((8,), 100), n_clusters=2, reorganize_every=50, projection=False)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    seen = []
    for update in range(200):
        target = torch.randint(0, 8, (64,))
        hidden = directions[target % 2] + 0.1 * torch.randn(64, WIDTH)
        head(hidden, target).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        head.step()
        if update % 50 == 48:
            seen.append(head.measures().cluster_perplexity)
    assert head.partition.to_lists() in ([[0, 2, 4, 6], [1, 3, 5, 7]], [[1, 3, 5, 7], [0, 2, 4, 6]])
    assert seen[-1] < 1.1 < seen[0]
