"""The summarizer: batches of few shapes, nothing depends on what fills them up, and it learns what it is shown."""

from collections import Counter

import numpy as np
import pytest
import torch

from coterie.clustering.partition import Partition, random_partition
from coterie_lab.data import pairs as corpus
from coterie_lab.data.batches import Batches, edges
from coterie_lab.data.prepare_pairs import prepare
from coterie_lab.data.streams import IGNORED
from coterie_lab.models.summarizer import Writing
from coterie_lab.tasks.summarization.clusters import cluster, load
from coterie_lab.tasks.summarization.settings import PRESETS, Decoding, from_preset, language_settings
from coterie_lab.tasks.summarization.train import SummaryTask, build, data, evaluate, train
from coterie_lab.tasks.summarization.trained import Trained
from coterie_lab.training import checkpoint
from coterie_lab.training.distributed import World
from coterie_lab.training.logs import read_journal
from tests.killing import assert_same, killed
from tests.pairs import news, small, tiny_pairs, write_tsv

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return tiny_pairs(tmp_path_factory.mktemp("pairs"))


# -- batches ------------------------------------------------------------------------------------------------------


def rows_of(batch):
    """The pairs of a batch as tuples, without what fills it up."""
    for article, length, title in zip(batch.article.tolist(), batch.length.tolist(), batch.title.tolist(), strict=True):
        if title[0] != IGNORED:
            yield tuple(article[:length]), tuple(word for word in title if word != IGNORED)


def pairs_of(part):
    sides = (
        [side.ids[a:b].tolist() for a, b in zip(side.starts, side.ends, strict=True)]
        for side in (part.article, part.title)
    )
    return Counter((tuple(article), tuple(title)) for article, title in zip(*sides, strict=True))


def test_every_pair_is_met_once_an_epoch_in_few_shapes(pairs):
    part = pairs.part("train")
    batches = Batches(part, 16, seed=0)
    epochs = [[batches.batch(epoch * batches.steps + step) for step in range(batches.steps)] for epoch in range(2)]
    for epoch in (*epochs, list(batches.in_order())):
        assert Counter(pair for batch in epoch for pair in rows_of(batch)) == pairs_of(part)
        shapes = {tuple(tensor.shape for tensor in batch) for batch in epoch}
        assert len(shapes) <= 12
        assert {len(batch.length) for batch in epoch} == {16}
    first = [[set(rows_of(batch)) for batch in epoch] for epoch in epochs]
    assert first[0] != first[1]
    again = Batches(part, 16, seed=0).batch(batches.steps + 3)  # by number, from anywhere
    assert torch.equal(again.article, epochs[1][3].article)
    for batch in epochs[0]:  # filled up with many words, not with one
        filling = batch.article[torch.arange(batch.article.shape[1]) >= batch.length[:, None]]
        assert len(filling) < 20 or len(filling.unique()) > 5


def test_processes_share_a_batch(pairs):
    part = pairs.part("train")
    whole = Batches(part, 16, seed=0)
    shares = [Batches(part, 16, 0, rank, 2) for rank in range(2)]
    for step in range(3):
        together = [pair for share in shares for pair in rows_of(share.batch(step))]
        assert Counter(together) == Counter(rows_of(whole.batch(step)))
    with pytest.raises(ValueError, match="shared evenly"):
        Batches(part, 16, 0, 0, 3)


def test_long_sentences_are_cut(pairs):
    batches = Batches(pairs.part("train"), 16, seed=0, longest=7)
    assert {batch.article.shape[1] for batch in batches.in_order()} == {8}
    assert max(int(batch.length.max()) for batch in batches.in_order()) == 8
    assert edges(np.array([1, 2, 3, 9]), (0.5, 1.0)) == [4, 12]


# -- the model ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", list(PRESETS))
@pytest.mark.parametrize("input_feeding", [False, True])
def test_what_fills_a_batch_up_changes_nothing(pairs, preset, input_feeding):
    model = build(small(preset, input_feeding=input_feeding), pairs.counts, pairs.eos).eval()
    batch = Batches(pairs.part("train"), 16, seed=0).batch(0)
    with torch.no_grad():
        together = model.hidden(*batch)
        for row in range(3):
            n, m = int(batch.length[row]), int((batch.title[row] >= 0).sum())
            article = torch.cat((batch.article[row, :n], torch.randint(0, 9, (5,))))[None]
            alone = model.hidden(article, batch.length[row : row + 1], batch.title[row : row + 1, :m])
            torch.testing.assert_close(alone[0], together[row, :m], atol=1e-5, rtol=1e-4)


def test_reading_backwards_is_reading_the_sentence_turned_round():
    settings = small()
    model = build(settings, torch.ones(30, dtype=torch.int64), 1).eval()
    model.backward_reader.load_state_dict(model.reader.state_dict())
    article = torch.randint(0, 30, (1, 6))
    width = settings.hidden
    with torch.no_grad():
        states = model.read(model.embed(article), torch.tensor([6]))[0].states
        turned = model.read(model.embed(article.flip(1)), torch.tensor([6]))[0].states
    there, back, words = states.split(width, -1)
    there_turned, back_turned, words_turned = turned.split(width, -1)
    torch.testing.assert_close(back.flip(1), there_turned)
    torch.testing.assert_close(there.flip(1), back_turned)
    assert torch.equal(words.flip(1), words_turned)
    assert torch.equal(words, model.embedding(article))


def a_writer_that_is_fed(**settings):
    """A model, sentences (5, 7), their lengths and titles (5, 4)."""
    model = build(small(input_feeding=True, initial_range=0.5, **settings), torch.ones(30, dtype=torch.int64), 1)
    torch.manual_seed(3)
    return model, torch.randint(0, 30, (5, 7)), torch.tensor([7, 1, 4, 6, 2]), torch.randint(0, 30, (5, 4))


def plainly(model, article, length, title):
    """Input feeding as Luong et al. have it: with each word goes in what the head was given for it."""
    memory, begun = model.read(model.embed(article), length)
    state, given, every = (begun.state, begun.cell), torch.zeros(len(title), 1, model.writer.hidden_size), []
    for word in (torch.full_like(title[:, :1], model.eos), *title[:, :-1].split(1, 1)):
        output, state = model.writer(torch.cat((model.embed(word), given), -1), state)
        given, _ = model.look(output, memory)
        every.append(given)
    return torch.cat(every, 1)


def test_input_feeding_is_what_it_is_when_written_plainly():
    model, *batch = a_writer_that_is_fed()
    assert model.writer.input_size == 2 * 24
    ways = [model.hidden(*batch), plainly(model, *batch)]
    torch.testing.assert_close(*ways, atol=1e-6, rtol=0)
    upstream, learnt = torch.randn_like(ways[0]), [p for name, p in model.named_parameters() if "head" not in name]
    torch.testing.assert_close(*(torch.autograd.grad(way, learnt, upstream) for way in ways), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_titles_side_by_side_and_word_by_word_are_those_of_training():
    model, article, length, title = a_writer_that_is_fed()
    titles = torch.stack((title, title.flip(1), title.roll(1, 0)), 1)  # (5, 3, 4)
    memory, begun = model.eval().read(model.embed(article), length)
    writing = Writing(*(part.repeat_interleave(3, 1) for part in begun))
    last = torch.full((5, 3), model.eos)
    for at in range(4):
        hidden, _, writing = model.step(model.embed(last), writing, memory)
        for row in range(3):
            expected = model.hidden(article, length, titles[:, row])[:, at]
            torch.testing.assert_close(hidden[:, row], expected, atol=1e-6, rtol=0)
        last = titles[..., at]


def test_every_word_learns_through_what_was_fed_to_later_ones(monkeypatch):
    model, *batch = a_writer_that_is_fed(dropout=0.5)
    given, usual = [], model.look

    def noted(*asked):
        given.append(usual(*asked))
        return given[-1]

    monkeypatch.setattr(model, "look", noted)
    last = model.train().hidden(*batch)[:, -1]
    assert len(given) == 4
    for at in range(3):  # what the head saw, after the dropout
        gradient, *_ = torch.autograd.grad(last.sum(), given[at][0], retain_graph=True)
        assert (gradient != 0).all()


@pytest.mark.parametrize("input_feeding", [False, True])
def test_every_parameter_learns_and_is_trained_once(pairs, input_feeding):
    for preset in PRESETS:
        task = SummaryTask(pairs, small(preset, input_feeding=input_feeding), CPU, World())
        task.loss(*task.batch(0)).backward()
        grouped = [parameter for group in task.groups() for parameter in group["params"]]
        assert len(set(grouped)) == len(grouped) == len(list(task.model.parameters()))
        assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in grouped)
    assert from_preset("paper").clip is None
    assert from_preset("best").tied
    assert from_preset("best", head_options={"projection": True}).head_options["projection"]
    assert from_preset("best", head="nce").head_options == {}
    for head in ("full", "full-compiled"):
        assert from_preset("best", head=head).head_options == {"label_smoothing": 0.1}
        assert from_preset("paper", head=head).head_options == {"biases": "random"}  # nobody there starts from counts
    two_level = {"projection": False, "label_smoothing": 0.1}
    for head in ("random-clusters", "hsm-frequency", "hsm-similarity"):
        assert from_preset("best", head=head).head_options == two_level
    # Clusters that were given stay, however they were; others move.
    assert from_preset("best").head_options == two_level
    stay = {**two_level, "reorganize_every": None}
    assert from_preset("best", clusters=True).head_options == stay
    file = {"partition": "clusters.json"}
    assert from_preset("best", head_options=file).head_options == {**stay, **file}
    printed = {"bias": False, "own_words": 0, "reorganize_every": 1000}
    assert from_preset("paper").head_options == printed
    assert from_preset("paper", clusters=True).head_options == {**printed, "reorganize_every": None}


def test_evaluation_counts_every_word_of_the_titles(pairs):
    model = build(small(), pairs.counts, pairs.eos)
    found = evaluate(model, Batches(pairs.part("valid"), 5, 0))
    total = n = 0
    with torch.no_grad():
        for batch in Batches(pairs.part("valid"), 1, 0).in_order():
            row = model.eval().head.log_prob(model.hidden(*batch))[0]
            title = batch.title[0]
            total += float(row.gather(1, title.clamp(min=0)[:, None]).squeeze(1)[title >= 0].sum())
            n += int((title >= 0).sum())
    assert n == len(pairs.part("valid").title.ids)
    assert found["loss"] == pytest.approx(-total / n, rel=1e-5)
    assert found["perplexity"] == pytest.approx(found["cluster_perplexity"] * found["in_cluster_perplexity"], rel=1e-5)


# -- training -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("preset", "head"), [("best", "self-organized"), ("paper", "full")])
@pytest.mark.parametrize("input_feeding", [False, True])
def test_it_memorises_fifty_pairs(tmp_path, preset, head, input_feeding):
    given = news(54)
    memory = prepare([write_tsv(tmp_path / "news.tsv", given)], tmp_path / "data", valid=2, test=2, source_words=True)
    settings = small(
        preset, head=head, hidden=40, embedding=40, batch=8, initial_range=0.3, learning_rate=0.02, epochs=35,
        log_every=50, schedule="linear", clip=1.0, keep="last", input_feeding=input_feeding,
    )  # fmt: skip
    train(memory, tmp_path / "run", settings)
    trained = Trained.open(tmp_path / "run", "cpu")
    held_out = set(memory.text("valid", "title") + memory.text("test", "title"))
    known = [(article, title) for article, title in given if title not in held_out]
    written = list(trained.summarize([article for article, _ in known], Decoding(batch=7)))
    right = sum(mine == title for mine, (_, title) in zip(written, known, strict=True))
    assert right >= 0.95 * len(known), right


def test_a_language_model_reads_each_sentence_before_its_title(pairs, monkeypatch):
    monkeypatch.setattr(corpus, "BLOCK", 7)  # pairs: fewer than there are, and no divisor of their number
    text = pairs.language("both")
    for name, ids in (("train", text.train), ("valid", text.dev)):
        part = pairs.part(name)
        expected = []
        for n in range(len(part)):
            for side, end in ((part.article, [pairs.eos]), (part.title, [])):
                expected += side.ids[side.starts[n] : side.ends[n]].tolist() + end
        assert ids.tolist() == expected
    assert text.counts.tolist() == np.bincount(text.train, minlength=pairs.n_words).tolist()
    assert pairs.language("titles").train.tolist() == pairs.part("train").title.ids.tolist()
    assert pairs.language("titles").counts.tolist() == pairs.counts.tolist()


def test_clusters_of_the_titles_are_used_and_stay(pairs, tmp_path):
    settings = language_settings("titles", hidden=16, embedding=16, sequences=4, length=10, epochs=2, device="cpu",
                                 head_options={"reorganize_every": 5, "n_clusters": 9})  # fmt: skip
    written = cluster(pairs, tmp_path / "titles", settings, "titles")
    moved = read_journal(tmp_path / "titles/reorganizations.jsonl")
    assert [record["step"] for record in moved][:2] == [5, 10]
    partition = load(tmp_path / "titles", pairs)
    assert partition.cluster_of.tolist() == load(written, pairs).cluster_of.tolist()
    train(pairs, tmp_path / "run", small(epochs=1, clusters=True), partition)
    trained = Trained.open(tmp_path / "run", "cpu")
    assert trained.model.head.partition.cluster_of.tolist() == partition.cluster_of.tolist()
    assert trained.model.head.reorganize_every is None
    going_on = small(epochs=1, head_options={"reorganize_every": 3})
    train(pairs, tmp_path / "on", going_on, partition)
    assert read_journal(tmp_path / "on/reorganizations.jsonl")[0]["step"] == 3
    on = Trained.open(tmp_path / "on", "cpu").model.head
    assert on.partition.cluster_of.tolist() != partition.cluster_of.tolist()
    other = random_partition(pairs.counts, partition.n_clusters, partition.capacity, 10_000)
    with pytest.raises(ValueError, match=r"another text .*\(clusters \w+, not"):
        train(pairs, tmp_path / "run", small(epochs=1, clusters=True), other, resume=True)
    few = random_partition(pairs.counts[:-1], 5, 30, 10_000)
    with pytest.raises(ValueError, match=r"the clusters are of .* words and the pairs have"):
        train(pairs, tmp_path / "no", small(), few)
    alone = Partition(partition.cluster_of.index_fill(0, torch.tensor([3]), 9), 9, n_own=9)
    with pytest.raises(ValueError, match=r"with these clusters \d words stand alone.*--head-option own_words=0"):
        train(pairs, tmp_path / "no", small("paper", clusters=True), alone)
    with pytest.raises(ValueError, match="the head 'full' takes no clusters"):
        train(pairs, tmp_path / "no", small(head="full"), partition)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    "head", ["hsm-similarity", "hsm-huffman", "importance", "nce", "differentiated", "cnn", "adaptive"]
)
def test_heads_that_learn_from_the_text_are_given_the_titles(pairs, tmp_path, head):
    train(pairs, tmp_path / "run", small(epochs=1, head=head, tied=False))
    trained = Trained.open(tmp_path / "run", "cpu")
    saved = checkpoint.load(tmp_path / "run/model.pt")["model"]
    assert all(torch.equal(value, saved[name]) for name, value in trained.model.state_dict().items())


def test_a_run_killed_at_any_moment_goes_on_to_the_last_bit(pairs, tmp_path):
    settings = small(epochs=3, dropout=0.2, input_feeding=True)
    train(pairs, tmp_path / "whole", settings)
    out = tmp_path / "killed"
    assert killed(train, pairs, out, settings, kills=1, checkpoint_every=0.02) == 1
    assert_same(out, tmp_path / "whole")


def test_other_pairs_of_the_same_sizes_are_refused(tmp_path):
    splits = []
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        splits.append(tiny_pairs(tmp_path / str(seed), seed=seed, max_vocab=40))
    one, two = (data(pairs, None).fingerprint for pairs in splits)
    assert one.keys() == {"train_pairs", "valid_pairs", "test_pairs", "vocabulary", "clusters", "digest"}
    assert {name for name in one if one[name] != two[name]} == {"digest"}
    train(splits[0], tmp_path / "run", small(epochs=1))
    words = (tmp_path / "run/vocabulary.json").read_bytes()
    with pytest.raises(ValueError, match="was trained on another text than"):
        train(splits[1], tmp_path / "run", small(epochs=1), resume=True)
    assert (tmp_path / "run/vocabulary.json").read_bytes() == words


def test_unknown_words_are_replaced_by_what_was_looked_at(pairs, tmp_path):
    train(pairs, tmp_path / "run", small(epochs=1))
    trained = Trained.open(tmp_path / "run", "cpu")
    with torch.no_grad():
        head = trained.model.head
        head.bias[0] = 60.0
        head.cluster_bias[int(head.partition.cluster_of[0])] = 60.0
    sentence = "The xylograph of quux sold zyzzyva ."
    plain, replaced = (
        next(iter(trained.summarize([sentence], Decoding(longest=4, replace_unknown=replace)))).split()
        for replace in (False, True)
    )
    assert plain == ["<unk>"] * 4
    assert set(replaced) <= set(sentence.lower().split())
    assert len(replaced) == 4


def test_lines_keep_their_order_and_empty_ones_their_place(pairs, tmp_path):
    train(pairs, tmp_path / "run", small(epochs=1))
    trained = Trained.open(tmp_path / "run", "cpu")
    lines = [article for article, _ in news(9, seed=5)]
    lines[3] = "  "
    together = list(trained.summarize(lines, Decoding(batch=4)))
    assert together == [title for line in lines for title in trained.summarize([line], Decoding())]
    assert together[3] == ""
