"""From raw pairs to numbered words: normalisation, filters, splits, and what is wrong with a file."""

import lzma
from itertools import pairwise

import numpy as np
import pytest

from coterie_lab.data import normalise, reading
from coterie_lab.data.corpus import Corpus
from coterie_lab.data.filters import Filter
from coterie_lab.data.folder import EOS, UNK
from coterie_lab.data.pairs import Pairs
from coterie_lab.data.prepare_pairs import prepare
from coterie_lab.data.settings import Limits
from tests.corpora import tiny_corpus
from tests.pairs import news, tiny_pairs, write_gigaword, write_tsv


@pytest.mark.parametrize(
    ("raw", "tokens"),
    [
        ("Ford's 25 air-bags cost $1,250.", "ford 's ## air-bags cost $ #,### ."),
        ("TOKYO (Reuters) - Japan's Nikkei fell.", "japan 's nikkei fell ."),
        ("AP - Jason Giambi returned.", "jason giambi returned ."),
        ("BAGHDAD, Iraq, August 24 -- A car exploded.", "a car exploded ."),
        ("Dubai, Nov 3 (UNI) President Kalam spoke.", "president kalam spoke ."),
        ("ISLAMABAD: Groups met.", "groups met ."),
        ("New Delhi - The minister spoke.", "the minister spoke ."),
        ("Tim Henman - the favourite - won.", "tim henman - the favourite - won ."),
        ("IBM - the maker of computers - fell.", "ibm - the maker of computers - fell ."),
        ("<Royal Bank of Canada> and Maxtor <MXTR.O> agreed.", "royal bank of canada and maxtor agreed ."),
        ("&lt;b&gt;Go&lt;/b&gt; &amp; win<br/>now", "go & win now"),
        ('<A HREF="x.asp">Read</A> this', "read this"),
        ("Disney Co. (DIS.N: Quote, Profile, Research) Chief quit.", "disney co. chief quit ."),
        ("They weren 't here. Then Mr. Low (Acme Inc. Chief) came.",
         "they were n't here . then mr. low -lrb- acme inc. chief -rrb- came ."),
        ('A "home " game. He said "we won."', "a `` home '' game . he said `` we won . ''"),
        ("“Ça va” — £5", "`` ça va '' -- £# "),
    ],
)  # fmt: skip
def test_sentences_become_tokens(raw, tokens):
    assert normalise.article(raw) == tokens.split()


@pytest.mark.parametrize(
    ("raw", "tokens"),
    [
        ("FORD <F> AIR-BAG PROGRAM FLAGGING - REPORT", "ford air-bag program flagging - report"),
        ("Symantec to Buy Veritas for $13.5 Billion (Reuters)", "symantec to buy veritas for $ ##.# billion"),
        ("UPDATE 1-Rangers crash out", "rangers crash out"),
        ("Sun to Return (Update2)", "sun to return"),
        ("Santa Clara Wins ...", "santa clara wins"),
        ("Santa Clara Knocks Off No. 4 North & ...&", "santa clara knocks off no. # north"),
        ("Blair May Call Election ? & ... &", "blair may call election"),
        ("AT&T ... and S & P", "at & t ... and s & p"),
    ],
)
def test_titles_become_tokens(raw, tokens):
    assert normalise.title(raw) == tokens.split()


def test_gigawords_tokens_stay_as_they_are():
    assert normalise.ready("the UNK of ##.# unk <unk> Said -lrb- a -rrb-\n") == [
        "the", UNK, "of", "##.#", UNK, UNK, "Said", "-lrb-", "a", "-rrb-",
    ]  # fmt: skip


def test_each_reason_is_counted():
    kept = Filter(Limits(shortest_article=4, longest_article=8, shortest_title=2, longest_title=4))
    asked = {
        "the bank sold its ships today": "bank sells ships",
        "": "bank sells ships",
        "the bank sold": "bank sells ships",
        "the bank sold all of its old and new ships": "bank sells ships",
        "the bank sold some ships": "ships",
        "the bank sold many ships": "bank sells one two three",
        "the bank bought its ships today": "sports in brief",
        "the bank sold its mines today": "on the two of it",
        "a bank is selling its ships": "sells off",
    }
    outcome = [kept.keeps(article.split(), title.split()) for article, title in asked.items()]
    assert outcome == [True, False, False, False, False, False, False, False, False]
    assert not kept.keeps("the bank sold its ships today".split(), "another bank".split())  # noqa: SIM905
    assert kept.counted == {
        "empty": 1, "short_article": 1, "long_article": 1, "short_title": 1, "long_title": 2, "byline": 1,
        "overlap": 1, "duplicate": 1,
    } | {"overlap": 1}  # fmt: skip


def test_prepared_pairs_are_the_pairs(tmp_path):
    given = news(200)
    pairs = tiny_pairs(tmp_path, 200, seed=3)
    assert {name: len(part) for name, part in pairs.parts.items()} == {"train": 184, "valid": 8, "test": 8}
    wanted = {" ".join(normalise.article(article)): " ".join(normalise.title(title)) for article, title in given}
    met = []
    for name, part in pairs.parts.items():
        for row in range(len(part)):
            article, title = (
                [pairs.words[word] for word in side.ids[side.starts[row] : side.ends[row]]]
                for side in (part.article, part.title)
            )
            assert title[-1] == EOS
            met.append(" ".join(article))
            if UNK not in article and UNK not in title:
                assert wanted[met[-1]] == " ".join(title[:-1])
            if name != "train":
                text = pairs.text(name, "article")[row], pairs.text(name, "title")[row]
                assert wanted[text[0]] == text[1]
    assert len(met) == 200
    titles = np.bincount(pairs.part("train").title.ids, minlength=pairs.n_words)
    assert pairs.counts.tolist() == titles.tolist()
    ranked = pairs.counts[1:].tolist()
    assert all(a >= b for a, b in pairwise(ranked))
    assert not list(tmp_path.glob("data/*.kept"))
    other = prepare([tmp_path / "news.tsv"], tmp_path / "other", seed=4)
    assert other.text("test", "title") != pairs.text("test", "title")
    again = prepare([tmp_path / "news.tsv"], tmp_path / "again", seed=3)
    assert (tmp_path / "again/vocabulary.json").read_bytes() == (tmp_path / "data/vocabulary.json").read_bytes()
    assert again.text("test", "title") == pairs.text("test", "title")


def test_the_vocabulary_is_of_titles_and_may_be_filled_up(tmp_path):
    pairs = tiny_pairs(tmp_path, 200, max_vocab=20)
    assert pairs.n_words == 20
    assert "the" not in pairs.words
    assert EOS in pairs.words
    assert (pairs.part("train").title.ids == 0).any()
    more = prepare([tmp_path / "news.tsv"], tmp_path / "more", source_words=True, max_vocab=60)
    titles = prepare([tmp_path / "news.tsv"], tmp_path / "titles")
    assert more.words[: titles.n_words] == titles.words
    added = more.words[titles.n_words :]
    counts = np.bincount(more.part("train").article.ids, minlength=more.n_words)[titles.n_words :]
    assert {"the", "of", ".", "on"} <= set(added[:5])
    assert all(a >= b for a, b in pairwise(counts.tolist()))
    assert not more.counts[titles.n_words :].any()


def test_compressed_files_in_folders(tmp_path):
    (tmp_path / "in").mkdir()
    text = "".join(f"{article}\t{title}\r\n" for article, title in news(100))
    (tmp_path / "in/a.tsv.xz").write_bytes(lzma.compress(b"\xef\xbb\xbf" + text.encode()))
    write_tsv(tmp_path / "in/b.tsv", news(100, seed=1))
    pairs = prepare([tmp_path / "in"], tmp_path / "out")
    read = pairs.source["read"]["train"]
    assert read == 200
    assert sum(map(len, pairs.parts.values())) + sum(pairs.source["left_out"].values()) == 200
    assert [file["name"] for file in pairs.source["files"]["train"]] == ["a.tsv.xz", "b.tsv"]
    assert "\r" not in "".join(pairs.words)


def test_gigawords_layout(tmp_path):
    given = news(200)
    folder = write_gigaword(tmp_path / "sumdata", given)
    pairs = prepare([folder], tmp_path / "out")
    assert {name: len(part) for name, part in pairs.parts.items()} == {"train": 160, "valid": 20, "test": 20}
    assert pairs.text("test", "title") == [title for _, title in given[20:40]]
    assert not pairs.source["settings"]["raw"]
    (folder / "Giga/task1_ref0.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"input\.txt and no task1_ref0\.txt"):
        prepare([folder], tmp_path / "no")
    (folder / "Giga/input.txt").unlink()
    assert set(prepare([folder], tmp_path / "without", valid=7).parts) == {"train", "valid"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a b\tc d\nno tab here\n", "line 2: 1 columns; expected a sentence, one tab, a title"),
        (b"a\tb\tc\n", "line 1: 3 columns"),
        (b"a b\tc d\n\tonly a title\n", "line 2: the sentence is empty"),
        (b"a b\tc d\na b\t  \n", "line 2: the title is empty"),
        (b"a b\tc d\na b\tc\xff d\n", "line 2: byte 6 of the line is no valid UTF-8"),
        (b"a b\tc d\na\0b\tc\n", "line 2: byte 2 of the line is NUL"),
        (b"a b\tc d\na b\tc d\n" + b"x" * (2 << 20), "line 3: it is longer than 1,048,576 characters"),
        (b"", "is empty"),
        (b"one two three four five six\tone two\n", "none of 1 pairs passed the filters: loosen them"),
        (
            b"one two three four five six seven eight nine ten eleven\tone two six\n",
            "part of 1 pairs would hold none",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(tmp_path, content, said):
    (tmp_path / "bad.tsv").write_bytes(content)
    with pytest.raises(ValueError, match=said.replace("(", r"\(")) as error:
        prepare([tmp_path / "bad.tsv"], tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["bad.tsv"]


def test_sides_of_unequal_length(tmp_path):
    folder = write_gigaword(tmp_path / "in", news(100))
    with (folder / "train.title.txt").open("a") as file:
        file.write("one more title\n")
    with pytest.raises(ValueError, match=r"article\.txt ends after line 80 and .*title\.txt has a line 81"):
        prepare([folder], tmp_path / "out")


def test_a_file_read_in_blocks_has_the_same_lines(tmp_path, monkeypatch):
    text = "one\ntwo é\n\nfour"
    (tmp_path / "x").write_text(text)
    for block in (1, 2, 3, 100):
        monkeypatch.setattr(reading, "BLOCK", block)
        assert list(reading.lines(tmp_path / "x")) == text.split("\n")


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("nothing", {}, "does not exist"),
        ("empty", {}, "holds no pairs"),
        ("news.tsv", {"valid": 60, "test": 60}, "none is left to train on"),
    ],
)
def test_sources_that_leave_nothing(tmp_path, source, options, said):
    (tmp_path / "empty").mkdir()
    write_tsv(tmp_path / "news.tsv", news(100))
    with pytest.raises((FileNotFoundError, ValueError), match=said):
        prepare([tmp_path / source], tmp_path / "out", **options)


def test_the_other_kind_of_folder_is_told_from_a_broken_one(tmp_path):
    (folder := tmp_path / "text").mkdir()
    pairs, corpus = tiny_pairs(tmp_path, 100), tiny_corpus(folder)
    with pytest.raises(
        ValueError, match=r"^[^(]* holds pairs of a sentence and a title: give a folder that `coterie lm"
    ):
        Corpus.open(pairs.path)
    with pytest.raises(ValueError, match=r"^[^(]* holds a text: give a folder that `coterie summarize prepare` wrote"):
        Pairs.open(corpus.path)


def test_what_is_not_whole_is_not_opened(tmp_path):
    pairs = tiny_pairs(tmp_path, 100)
    array = pairs.path / "train.title.npy"
    array.write_bytes(array.read_bytes()[:-2])
    with pytest.raises(ValueError, match="is incomplete"):
        Pairs.open(pairs.path)
    with pytest.raises(FileNotFoundError, match="coterie summarize prepare"):
        Pairs.open(tmp_path / "nothing")
