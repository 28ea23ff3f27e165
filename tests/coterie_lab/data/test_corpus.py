"""Text to ids: the same as splitting the whole text at once, from every kind of source; nothing half-written."""

import hashlib
import json
import os
import random
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from coterie_lab.commands.prepare import prepare_text as command
from coterie_lab.data import corpus as module
from coterie_lab.data import reading, sources
from coterie_lab.data.corpus import Corpus, prepare
from tests.texts import content, pack, save

LETTERS = "abBéΣ世🙂İ"
GAPS = [" ", " ", " ", "\n", "\n\n", "\t", "\r\n", "\u2003", " \n "]


def some_text(n_words: int, seed: int = 0) -> str:
    """Words of one to three letters of one to four bytes, with all sorts of gaps."""
    rng = random.Random(seed)
    words = ("".join(rng.choices(LETTERS, k=rng.choice([1, 1, 1, 2, 3]))) for _ in range(n_words))
    return "".join(word + rng.choice(GAPS) for word in words) + "end"


def tokens_of(text: str, lower: bool, eos: bool) -> list[str]:
    """The reference: the whole text at once, line by line."""
    text = text.lower() if lower else text
    if not eos:
        return text.split()
    lines = text.split("\n")
    lines = lines if lines[-1] else lines[:-1]
    return [token for line in lines for token in [*line.split(), "<eos>"]]


def reference(train: str, dev: str, min_count=1, max_vocab=None, lower=False, eos=False):
    """Words, counts, training ids and development ids, the slow way."""
    tokens = tokens_of(train, lower, eos)
    ranked = sorted(Counter(tokens).items(), key=lambda item: (-item[1], item[0]))
    kept = [word for word, n in ranked if word != "<unk>" and n >= min_count]
    words = ["<unk>", *kept[: None if max_vocab is None else max_vocab - 1]]
    ids = [words.index(token) if token in words else 0 for token in tokens]
    dev_ids = [words.index(token) if token in words else 0 for token in tokens_of(dev, lower, eos)]
    return words, [ids.count(n) for n in range(len(words))], ids, dev_ids


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lower": True},
        {"eos": True, "min_count": 3},
        {"max_vocab": 11},
        {"lower": True, "eos": True, "min_count": 2, "max_vocab": 20},
    ],
)
@pytest.mark.parametrize("dev_chars", [1, 23, 180])
def test_equals_the_whole_text_at_once(tmp_path, monkeypatch, block, options, dev_chars):
    monkeypatch.setattr(reading, "BLOCK", block)
    text = some_text(300, seed=dev_chars)
    corpus = prepare([save(tmp_path / "a.txt", text)], tmp_path / "out", dev_chars=dev_chars, **options)
    assert content(corpus) == reference(text[:-dev_chars], text[-dev_chars:], **options)
    assert corpus.counts.dtype == torch.int64
    assert int(corpus.counts.sum()) == len(corpus.train)


@pytest.mark.parametrize("eos", [False, True])
def test_a_cut_text_is_two_files(tmp_path, eos):
    text = some_text(200)
    whole = save(tmp_path / "whole.txt", text)
    train, dev = save(tmp_path / "train.txt", text[:-77]), save(tmp_path / "dev.txt", text[-77:])
    cut = prepare([whole], tmp_path / "cut", dev_chars=77, eos=eos)
    files = prepare([train], tmp_path / "files", dev=dev, test=whole, eos=eos)
    assert content(cut) == content(files)
    assert cut.test is None
    assert files.test is not None
    assert [files.words[word] for word in files.test] == [
        token if token in files.words else "<unk>" for token in tokens_of(text, False, eos)
    ]


@pytest.mark.parametrize("length, expected", [(500, 50), (999, 99), (1000, 100), (5000, 100)])
def test_the_split_when_none_is_given(tmp_path, monkeypatch, length, expected):
    monkeypatch.setattr(module, "DEV_CHARS", 100)
    monkeypatch.setattr(reading, "BLOCK", 64)
    text = some_text(5000)[:length]
    corpus = prepare([save(tmp_path / "a.txt", text)], tmp_path / "out")
    assert content(corpus) == reference(text[:-expected], text[-expected:])
    assert corpus.source["settings"]["dev_chars"] == expected


def test_the_unknown_word_of_the_text_is_ours(tmp_path):
    text = save(tmp_path / "a.txt", "a <unk> a b <unk> <unk> c a b\n")
    corpus = prepare([text], tmp_path / "out", dev=save(tmp_path / "d.txt", "b <unk> new"), min_count=2)
    assert content(corpus) == (["<unk>", "a", "b"], [4, 3, 2], [1, 0, 1, 2, 0, 0, 0, 1, 2], [2, 0, 0])
    assert corpus.n_words == 3


def test_line_ends_stay_in_the_vocabulary_however_rare(tmp_path):
    text = save(tmp_path / "a.txt", "a b c a b c a b c")
    corpus = prepare(
        [text], tmp_path / "out", dev=save(tmp_path / "d.txt", "a\nb\n"), eos=True, min_count=2, max_vocab=3
    )
    assert content(corpus) == (["<unk>", "a", "<eos>"], [6, 3, 1], [1, 0, 0, 1, 0, 0, 1, 0, 0, 2], [1, 2, 0, 2])
    tied = prepare([save(tmp_path / "b.txt", "! a\n")], tmp_path / "tied", dev=text, eos=True)
    assert tied.words == ["<unk>", "!", "<eos>", "a"]


@pytest.mark.parametrize("n_words, dtype", [(65_535, np.uint16), (65_536, np.int32)])
def test_the_smallest_type_that_holds_the_vocabulary(tmp_path, n_words, dtype):
    words = [f"w{n:05}" for n in range(n_words)]
    train = save(tmp_path / "a.txt", " ".join(words))
    corpus = prepare([train], tmp_path / "out", dev=save(tmp_path / "d.txt", f"w{n_words - 1:05}"))
    assert corpus.train.dtype == corpus.dev.dtype == dtype
    assert corpus.dev.tolist() == [n_words]
    assert isinstance(corpus.train, np.memmap)
    assert np.array_equal(np.load(tmp_path / "out" / "train.npy", mmap_mode="r"), np.arange(1, n_words + 1))


@pytest.mark.parametrize("suffix", ["xz", "gz", "zst", "zip"])
def test_compressed_files(tmp_path, suffix):
    text = some_text(2000)
    path = pack(tmp_path / f"a.txt.{suffix}", text)
    heard = []
    packed = prepare([path], tmp_path / "packed", dev_chars=100, progress=lambda *news: heard.append(news))
    plain = prepare([save(tmp_path / "a.txt", text)], tmp_path / "plain", dev_chars=100)
    assert content(packed) == content(plain)
    assert packed.source["files"]["train"][0]["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)
    assert heard[-1] == (2 * path.stat().st_size, 2 * path.stat().st_size)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(ValueError, match=rf"a\.txt\.{suffix} cannot be unpacked .*damaged"):
        prepare([path], tmp_path / "cut")


def test_zstandard_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ImportError, match=r"a\.zst needs the package zstandard: pip install 'coterie-softmax\[lab\]'"):
        prepare([save(tmp_path / "a.zst", "a b")], tmp_path / "out")


def test_several_files_and_folders_in_order(tmp_path):
    folder = tmp_path / "folder"
    save(folder / "a.txt", "\ufeffone two")
    pack(folder / "b.txt.gz", "three four ")
    save(folder / "c" / "d.txt", "five")
    for name in (".hidden.txt", ".git/e.txt", "README.md", "valid.txt"):
        save(folder / name, "never")
    corpus = prepare(
        [folder, save(tmp_path / "z", "six"), str(folder / "a.txt")], tmp_path / "out", dev=folder / "valid.txt"
    )
    assert [corpus.words[n] for n in corpus.train] == ["one", "two", "three", "four", "five", "six", "one", "two"]
    assert corpus.dev.tolist() == [0]
    other = tmp_path / "other"
    for name in ("wiki_01", "AA/wiki_00", ".DS_Store"):
        save(other / name, "words")
    assert [file.path.name for file in sources.find([other])] == ["wiki_00", "wiki_01"]


def test_memory_does_not_grow_with_the_text(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK", 1 << 14)
    text = save(tmp_path / "a.txt", "some words over and over again\n" * 100_000)
    tracemalloc.start()
    prepare([text], tmp_path / "out", dev_chars=1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < text.stat().st_size / 2


FILES = {
    "text": b"some words of text, and some more words of text",
    "empty": b"",
    "spaces": b"  \n " * 9,
    "latin1": b"caf\xe9 au lait " * 9,
    "cut": "caf\u00e9".encode()[:-1],
    "nul": b"a b c\0d e f",
    "long": b"x" * 2_000_000,
    "plain.xz": b"not compressed at all",
}


@pytest.mark.parametrize(
    "names, options, error, message",
    [
        (["nowhere"], {}, FileNotFoundError, "nowhere does not exist: give a text file, a folder of them, or"),
        ([], {}, ValueError, "no text to train on"),
        (["empty"], {}, ValueError, "empty is empty"),
        (["spaces"], {}, ValueError, "the text to train on holds no words"),
        (["latin1"], {}, ValueError, "latin1, line 1: byte 4 of the line is no valid UTF-8 (invalid"),
        (["cut"], {}, ValueError, "cut, line 1: byte 4 of the line is no valid UTF-8 (unexpected end of data)"),
        (["nul"], {}, ValueError, "nul, line 1: byte 6 of the line is NUL"),
        (["long"], {}, ValueError, "a word of more than 1,000,000 characters, 'xxxxxxxxxxxxxxxxxxxx'"),
        (["plain.xz"], {}, ValueError, "plain.xz cannot be unpacked"),
        (["text"], {"min_count": 4}, ValueError, "fewer than 2 words: none of 6 different ones occurs 4 times in 9;"),
        (["text"], {"dev_chars": 47}, ValueError, "the last 47 characters of a text of 47: ask `coterie lm prepare`"),
        (["text"], {"dev_chars": 5, "dev": "latin1"}, ValueError, "dev and dev_chars were both given"),
        (["text"], {"dev": "nowhere"}, FileNotFoundError, "nowhere does not exist"),
        (["text"], {"dev": "spaces"}, ValueError, "the dev part holds no words"),
        (["text"], {"dev": "text"}, ValueError, "text was given as text to train on and to be kept apart"),
        (["text"], {"min_count": 0}, ValueError, "min_count must be at least 1; got 0"),
        (["text"], {"max_vocab": 1}, ValueError, "max_vocab must be at least 2; got 1"),
        (["text"], {"dev_chars": 0}, ValueError, "dev_chars must be at least 1; got 0"),
    ],
)
@pytest.mark.parametrize("block", [2, 1 << 20])
def test_bad_input_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch, block, names, options, error, message):
    if "long" not in names:  # by twos it would take minutes
        monkeypatch.setattr(reading, "BLOCK", block)
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    options = {key: tmp_path / value if isinstance(value, str) else value for key, value in options.items()}
    with pytest.raises(error) as raised:
        prepare([tmp_path / name for name in names], tmp_path / "out", **options)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()
    assert not leftovers(tmp_path)


def test_bad_folders(tmp_path):
    (tmp_path / "bare").mkdir()
    with pytest.raises(FileNotFoundError, match="bare holds no text files"):
        prepare([tmp_path / "bare"], tmp_path / "out")
    save(tmp_path / "twice" / "a.txt", "a b")
    pack(tmp_path / "twice" / "a.txt.gz", "a b")
    with pytest.raises(ValueError, match=r"a\.txt and a\.txt\.gz, the same text twice"):
        prepare([tmp_path / "twice"], tmp_path / "out")


def test_text_that_changes_between_the_passes(tmp_path):
    path = save(tmp_path / "a.txt", "a b c d e f")

    def change(done: int, total: int | None) -> None:
        path.write_text("a b c d e g")

    with pytest.raises(ValueError, match=r"a\.txt changed while it was read"):
        prepare([path], tmp_path / "out", progress=change, dev=save(tmp_path / "d.txt", "a"))
    assert not (tmp_path / "out").exists()
    assert not leftovers(tmp_path)


def test_an_existing_place_is_kept_unless_forced(tmp_path):
    old, new = save(tmp_path / "old.txt", "a b c d " * 9), save(tmp_path / "new.txt", "e f g h " * 9)
    out = tmp_path / "out"
    prepare([old], out)
    with pytest.raises(FileExistsError, match="out exists: choose another place, or replace it with --force"):
        prepare([new], out)
    with pytest.raises(ValueError, match="byte 1 of the line is NUL"):
        prepare([new], out, force=True, test=save(tmp_path / "bad", "\0"))
    assert "a" in Corpus.open(out).words
    assert "e" in prepare([new], out, force=True).words
    save(out / "thesis.tex", "years of work")
    with pytest.raises(FileExistsError, match="holds more than a corpus, and is not replaced"):
        prepare([old], out, force=True)
    assert (out / "thesis.tex").exists()
    with pytest.raises(FileExistsError, match="holds more than a corpus"):
        prepare([old], new, force=True)
    assert not leftovers(tmp_path)


def test_a_place_taken_meanwhile_is_kept(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(OSError, match="out"):
        prepare([save(tmp_path / "a.txt", "a b c d " * 9)], out, progress=lambda *_: save(out / "theirs", "words"))
    assert [path.name for path in out.iterdir()] == ["theirs"]
    assert not leftovers(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit on a file's size to set")
@pytest.mark.parametrize("limit", [100, 5000, 30_000])  # the header, the ids, the vocabulary
def test_no_room_to_write(tmp_path, limit):
    text = save(tmp_path / "a.txt", " ".join(f"w{n}" for n in range(10_000)))
    prepare([save(tmp_path / "b.txt", "a b " * 9)], tmp_path / "out")
    program = (
        "import resource, sys; from coterie_lab.data.corpus import prepare\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "try: prepare([sys.argv[1]], sys.argv[2], force=True)\n"
        "except OSError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program, text, tmp_path / "out"], capture_output=True, text=True)
    assert "out could not be written (File too large): make room there" in done.stdout, done.stderr
    assert not leftovers(tmp_path)
    assert "a" in Corpus.open(tmp_path / "out").words


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    "break_it, message",
    [
        (lambda out: (out / "vocabulary.json").unlink(), "vocabulary.json"),
        (lambda out: (out / "dev.npy").unlink(), "dev.npy"),
        (lambda out: (out / "vocabulary.json").write_text("{"), "line 1 column 2"),
        (lambda out: (out / "vocabulary.json").write_text("[]"), "list"),
        (lambda out: (out / "vocabulary.json").write_text("{}"), "vocabulary.json lacks 'format'"),
        (lambda out: edit(out / "vocabulary.json", format="gguf"), "has format 'gguf' 1, expected 'coterie-corpus' 1"),
        (lambda out: edit(out / "vocabulary.json", version=2), "has format 'coterie-corpus' 2, expected"),
        (lambda out: edit(out / "vocabulary.json", words=["<unk>"]), "1 words and 5 counts"),
        (lambda out: edit(out / "vocabulary.json", words=list("vwxyz")), "the first word 'v'"),
        (lambda out: edit(out / "vocabulary.json", counts=[0, 9, 9, 9, 9]), "the counts sum to 36"),
        (lambda out: os.truncate(out / "train.npy", 140), "mmap length"),
        (lambda out: os.truncate(out / "train.npy", 0), ""),
        (lambda out: (out / "train.npy").write_bytes(b"x" * 500), "magic string"),
        (lambda out: np.save(out / "train.npy", np.zeros(3, np.uint16)), "holds uint16 of shape (3,), expected uint16"),
        (lambda out: np.save(out / "dev.npy", np.zeros(4, np.int32)), "holds int32 of shape (4,), expected uint16"),
    ],
)
def test_what_is_not_whole_is_not_opened(tmp_path, break_it, message):
    out = tmp_path / "out"
    prepare([save(tmp_path / "a.txt", "a b c d " * 9)], out, dev_chars=8)
    Corpus.open(str(out))
    break_it(out)
    with pytest.raises(ValueError, match=r"is incomplete .* write it again with `coterie lm prepare`") as raised:
        Corpus.open(out)
    assert message in str(raised.value)
    with pytest.raises(FileNotFoundError, match="is no folder"):
        Corpus.open(out / "nowhere")


app = typer.Typer()
app.command()(command)


def test_the_command_says_what_it_wrote(tmp_path):
    one, two = save(tmp_path / "a.txt", "A A b <unk> " * 30), save(tmp_path / "b.txt", "c\n" * 30)
    place = str(tmp_path / "out")
    options = ["--min-count", "2", "--max-vocab", "5", "--dev-chars", "20", "--lower", "--eos"]
    done = CliRunner().invoke(app, [str(one), str(two), place, *options])
    assert done.exit_code == 0, done.output
    corpus = Corpus.open(tmp_path / "out")
    assert corpus.words == ["<unk>", "a", "b", "<eos>", "c"]
    assert corpus.dev.tolist() == [4, 3] * 10
    for expected in (f"{len(corpus.train)}", "18.63%", "0.00%", "a.txt, b.txt", "the last 20 characters", "5 words"):
        assert expected in done.output, done.output
    assert isinstance(CliRunner().invoke(app, [str(one), place]).exception, FileExistsError)
    done = CliRunner().invoke(app, [str(one), place, "--force", "--dev", str(two), "--test", str(two)])
    assert done.exit_code == 0, done.output
    forced = Corpus.open(place)
    assert forced.words == ["<unk>", "A", "b"]
    assert forced.test is not None
    assert forced.test.tolist() == forced.dev.tolist() == [0] * 30
