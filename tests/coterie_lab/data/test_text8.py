"""The name `text8`: found in the cache, downloaded and checked, or a sentence that says what to do."""

import functools
import hashlib
import http.server
import os
import threading
from pathlib import Path

import pytest

from coterie_lab.data import text8
from coterie_lab.data.corpus import prepare
from tests.texts import content, pack, save


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A published text8 of our own, and an empty cache; the folder that is served, and the cache."""
    served, cache = tmp_path / "served", tmp_path / "cache"
    served.mkdir()
    pack(served / "text8.zip", "one two three " * 50)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=served)
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("COTERIE_CACHE", str(cache))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(text8, "URL", f"http://127.0.0.1:{server.server_port}/text8.zip")
    monkeypatch.setattr(text8, "MD5", hashlib.md5(b"one two three " * 50).hexdigest())
    monkeypatch.chdir(tmp_path)
    yield served, cache
    server.shutdown()
    server.server_close()


def test_text8_is_downloaded_once(site, tmp_path):
    served, cache = site
    heard = []
    one = prepare(["text8"], tmp_path / "one", dev_chars=14, progress=lambda *news: heard.append(news))
    assert one.words == ["<unk>", "one", "three", "two"]
    size = (cache / "text8.zip").stat().st_size
    assert heard[0] == (size, size)
    assert [path.name for path in cache.iterdir()] == ["text8.zip"]
    (served / "text8.zip").unlink()
    assert content(prepare(["text8"], tmp_path / "two", dev_chars=14)) == content(one)


@pytest.mark.parametrize("name", ["text8", "text8.xz", "text8.zip", "text8.gz"])
def test_text8_from_the_cache(site, tmp_path, name):
    served, cache = site
    (served / "text8.zip").unlink()
    cache.mkdir()
    write = save if name == "text8" else pack
    write(cache / name, "one two three " * 50)
    assert "three" in prepare(["text8"], tmp_path / "text8").words
    assert "three" in prepare(["text8"], tmp_path / "text8", force=True).words  # though a folder has the name now
    write(cache / name, "one two three " * 49)
    with pytest.raises(ValueError, match=rf"{name} is not text8: the md5 of its text is"):
        prepare(["text8"], tmp_path / "other")


def test_text8_out_of_reach_or_wrong(site, tmp_path):
    served, cache = site
    for break_it in (lambda: save(served / "text8.zip", "<html>Please log in</html>"), (served / "text8.zip").unlink):
        break_it()
        with pytest.raises(
            OSError, match=r"text8 is not in .* could not be downloaded from .*: put text8, text8.xz"
        ) as told:
            prepare(["text8"], tmp_path / "out")
        assert str(cache) in str(told.value)
        assert "\n" not in str(told.value)
        assert not list(cache.iterdir())


def test_a_file_of_that_name_is_read_as_it_is(site, tmp_path):
    save(tmp_path / "text8", "another text " * 9)
    assert "another" in prepare(["text8"], tmp_path / "out").words


def test_text8_itself(tmp_path):
    folder = os.environ.get("COTERIE_DATA")
    if not folder or not (Path(folder) / "text8" / "text8.xz").is_file():
        pytest.skip("set COTERIE_DATA to a folder that holds text8/text8.xz")
    corpus = prepare([Path(folder) / "text8" / "text8.xz"], tmp_path / "out", min_count=11)
    assert corpus.n_words == 44_370
    assert len(corpus.train) + len(corpus.dev) == 17_005_207 + 1  # the cut falls within a word
    assert corpus.source["settings"]["dev_chars"] == 1_000_000
