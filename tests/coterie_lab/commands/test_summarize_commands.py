"""`coterie summarize` from end to end on invented news, and its answers to mistakes."""

import pytest

from coterie_lab.data.pairs import Pairs
from coterie_lab.tasks.language.trained import Trained as TrainedLanguageModel
from coterie_lab.tasks.summarization.settings import USUAL, Decoding
from coterie_lab.tasks.summarization.trained import Trained
from tests.command_line import coterie
from tests.pairs import news, tiny_pairs, write_gigaword, write_tsv

ARGUMENTS = ["--hidden=16", "--embedding=16", "--batch=32", "--epochs=1", "--device=cpu"]
LANGUAGE = ["--hidden=8", "--embedding=8", "--sequences=4", "--epochs=1", "--device=cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Prepared, clustered and trained through the command line."""
    folder = tmp_path_factory.mktemp("summarize")
    write_tsv(folder / "news.tsv", [*news(250), ("unrelated words stand here alone", "nothing shared with that")])
    prepared = coterie("summarize", "prepare", folder / "news.tsv", folder / "data", "--valid", "20", "--test", "20")
    assert prepared.exit_code == 0, prepared.exception
    assert "no word that carries meaning in common" in prepared.stdout
    assert "251 pairs read" in prepared.stdout
    learned = coterie("summarize", "cluster", folder / "data", "--out", folder / "words", *LANGUAGE)
    assert learned.exit_code == 0, learned.exception
    trained = coterie(
        "summarize", "train", folder / "data", "--out", folder / "run", "--partition", folder / "words", *ARGUMENTS
    )
    assert trained.exit_code == 0, trained.exception
    assert "perplexity" in trained.stdout
    return folder


def test_clusters_are_the_language_models(folder):
    seats = TrainedLanguageModel.open(folder / "words", "cpu").organized.partition.cluster_of
    assert Trained.open(folder / "run", "cpu").model.head.partition.cluster_of.tolist() == seats.tolist()
    assert coterie("clusters", folder / "words", "--n", "3").exit_code == 0


def test_clusters_are_learned_from_both_sides_or_from_the_titles_alone(folder, tmp_path):
    pairs = Pairs.open(folder / "data")
    learn = ("summarize", "cluster", folder / "data", "--titles-only")
    assert coterie(*learn, "--out", tmp_path / "alone", *LANGUAGE).exit_code == 0
    for path, reading in ((folder / "words", "both"), (tmp_path / "alone", "titles")):
        own = TrainedLanguageModel.open(path, "cpu")
        assert own.counts.tolist() == pairs.language(reading).counts.tolist()
        assert own.settings.sequences == 4
        assert own.settings.head_options == USUAL[reading].get("head_options", {})
    # A run goes on with the text it began with, which need not be said again, and with its options.
    done = coterie(*learn, "--out", folder / "words", "--resume")
    assert "was trained on another text" in str(done.exception)
    assert coterie(*learn[:3], "--out", tmp_path / "alone", "--resume").exit_code == 0
    once_more = ("--out", folder / "run", "--resume", "--head-option", "projection=false")
    assert coterie("summarize", "train", folder / "data", *once_more).exit_code == 0


def test_clusters_that_no_word_has_moved_in_are_called_random(folder, tmp_path):
    short = ("--out", tmp_path / "words", *LANGUAGE, "--head-option", "reorganize_every=100000")
    done = coterie("summarize", "cluster", folder / "data", *short)
    assert done.exit_code == 0, done.exception
    assert "these clusters are random: no reorganization yet; train for longer" in done.stderr
    with pytest.warns(UserWarning, match="the partition is random and stays so"):
        done = coterie(
            "summarize",
            "train",
            folder / "data",
            "--out",
            tmp_path / "run",
            "--partition",
            tmp_path / "words",
            *ARGUMENTS,
        )
    assert done.exit_code == 0, done.exception
    assert Trained.open(tmp_path / "run", "cpu").model.head.partition.random


def test_generate_writes_a_title_for_each_line(folder):
    lines = [article for article, _ in news(5, seed=7)]
    (folder / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    trained = Trained.open(folder / "run", "cpu")
    expected = list(trained.summarize(lines, Decoding()))
    piped = coterie("summarize", "generate", folder / "run", stdin="".join(f"{line}\n" for line in lines))
    assert piped.stdout.splitlines() == expected
    for options in (("--interactive",), ("--batch", "2")):
        done = coterie("summarize", "generate", folder / "run", folder / "in.txt", *options)
        assert done.stdout.splitlines() == expected
    duc = coterie("summarize", "generate", folder / "run", folder / "in.txt", "--duc", "--length", "7", "--beam", "2")
    assert [len(line.split()) for line in duc.stdout.splitlines()] == [7] * 5


def test_resuming_needs_no_options_and_changes_nothing(folder):
    before = {path: path.read_bytes() for path in folder.glob("run/*.jsonl") if "environment" not in path.name}
    done = coterie("summarize", "train", folder / "data", "--out", folder / "run", "--resume")
    assert done.exit_code == 0, done.exception
    assert {path: path.read_bytes() for path in before} == before
    assert coterie("summarize", "cluster", folder / "data", "--out", folder / "words", "--resume").exit_code == 0


def test_input_feeding_is_a_switch_that_a_run_remembers(folder, tmp_path):
    train = ("summarize", "train", folder / "data", "--out", tmp_path / "run")
    done = coterie(*train, "--input-feeding", *ARGUMENTS)
    assert done.exit_code == 0, done.exception
    assert Trained.open(tmp_path / "run", "cpu").model.writer.input_size == 32
    assert coterie(*train, "--resume").exit_code == 0
    refused = coterie(*train, "--resume", "--no-input-feeding")
    assert "started with input_feeding True, not False" in str(refused.exception)
    done = coterie("summarize", "generate", tmp_path / "run", "--duc", "--length=5", stdin=f"{news(1)[0][0]}\n")
    assert len(done.stdout.split()) == 5


def test_a_page_shows_the_summarizer_beside_the_language_model(folder, tmp_path):
    done = coterie("report", folder / "run", folder / "words", "--out", tmp_path / "page.html")
    assert done.exit_code == 0, done.exception
    page = (tmp_path / "page.html").read_text()
    assert 'id="explorer-0"' in page
    assert 'id="explorer-1"' in page


def test_gigaword_and_duc_score_end_to_end(folder, tmp_path):
    giga = write_gigaword(tmp_path / "sumdata", news(100))
    assert coterie("summarize", "prepare", giga, tmp_path / "giga").exit_code == 0
    done = coterie("summarize", "train", tmp_path / "giga", "--out", tmp_path / "run", "--preset", "paper", *ARGUMENTS)
    assert done.exit_code == 0, done.exception
    titles = coterie("summarize", "generate", tmp_path / "run", giga / "Giga/input.txt").stdout
    (tmp_path / "titles.txt").write_text(titles)
    done = coterie("summarize", "score", tmp_path / "titles.txt", "--references", giga / "Giga")
    assert "full-length F1" in done.stdout, done.exception
    for number in (1, 2, 3):
        (giga / f"Giga/task1_ref{number}.txt").write_text((giga / "Giga/task1_ref0.txt").read_text())
    titles = coterie("summarize", "generate", tmp_path / "run", giga / "Giga/input.txt", "--duc").stdout
    (tmp_path / "titles.txt").write_text(titles)
    done = coterie("summarize", "score", tmp_path / "titles.txt", "--references", giga / "Giga")
    assert "recall within 75 bytes, 4 references" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("train", "{data}", "--out", "{run}"), "holds a run: resume it"),
        (("train", "{data}", "--out", "{run}", "--resume", "--batch", "8"), "started with batch 32, not 8"),
        (("train", "{data}", "--out", "{new}", "--resume", "--force"), "give one of them"),
        (("train", "{data}", "--out", "{new}", "--preset", "worst"), "there is no preset 'worst'"),
        (("train", "{data}", "--out", "{new}", "--head", "none"), "there is no head called 'none'"),
        (("train", "{data}", "--out", "{new}", "--head", "full", "--partition", "{words}"), "takes no clusters"),
        (("train", "{data}", "--out", "{new}", "--hidden", "8"), "tied weights need an embedding as wide"),
        (("train", "{nothing}", "--out", "{new}"), "coterie summarize prepare"),
        (("train", "{words}", "--out", "{new}"), "is incomplete"),
        (("cluster", "{data}", "--out", "{words}", "--sequences", "4"), "holds a run"),
        (("cluster", "{data}", "--out", "{new}", "--sequences", "5000"), "too short for 5000 sequences"),
        (("cluster", "{data}", "--out", "{words}", "--resume", "--force"), "give one of them"),
        (("generate", "{nothing}"), "is not a run"),
        (("generate", "{run}", "{nothing}"), "does not exist: give a text file"),
        (("train", "{data}", "--out", "{new}", "--partition", "{nothing}"), "give a file of clusters, or the folder"),
        (("generate", "{words}"), 'not of a run of kind "summarizer"'),
        (("prepare", "{nothing}", "{new}"), "does not exist"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(folder, tmp_path, arguments, said):
    names = {"nothing": tmp_path / "no", "new": tmp_path / "new"}
    names |= {name: folder / name for name in ("data", "run", "words")}
    done = coterie("summarize", *(argument.format(**names) for argument in arguments))
    assert done.exit_code == 1
    assert said in str(done.exception)
    assert not (tmp_path / "new").exists()


def test_clusters_of_other_pairs_are_refused_with_what_to_do(folder, tmp_path):
    other = tiny_pairs(tmp_path, 100, max_vocab=20)
    done = coterie("summarize", "train", other.path, "--out", tmp_path / "new", "--partition", folder / "words")
    assert "clusters.json is of another vocabulary: the vocabulary has 20 words" in str(done.exception)
    assert "with `coterie summarize cluster`" in str(done.exception)


def test_too_few_pairs_are_told_with_what_the_filters_left_out(tmp_path):
    write_tsv(tmp_path / "news.tsv", news(1) * 60)
    done = coterie("summarize", "prepare", tmp_path / "news.tsv", tmp_path / "data")
    assert "give more pairs" in str(done.exception)
    assert "(left out: 59 " in str(done.exception)
