"""The command line: it runs, and answers mistakes in one line."""

import json
import subprocess
import sys
import warnings
from unittest.mock import Mock

import pytest
import torch

from coterie import __version__
from coterie_lab import cli


def coterie(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "coterie_lab", *arguments], capture_output=True, text=True, timeout=300
    )


def test_demo_runs_and_prints_its_table(tmp_path):
    done = coterie("demo", "--epochs", "1", "--words", "30000", "--out", str(tmp_path / "runs" / "demo.json"))
    assert done.returncode == 0, done.stderr
    for expected in ("perplexity", "self-organized", "the grammar itself", "169.7", "Some clusters", "in-cluster"):
        assert expected in done.stdout
    written = json.loads((tmp_path / "runs" / "demo.json").read_text())
    assert set(written["results"]) == {"full", "self-organized"}
    assert written["environment"]["versions"]["torch"]
    page = tmp_path / "runs" / "demo.html"
    assert f"open {page.as_uri()}" in done.stdout.splitlines()[-1]
    assert "explorer-1" in page.read_text()
    organized = written["results"]["self-organized"]
    assert 100 < organized["alone"] < 200
    assert f"{organized['alone']} frequent words stand alone" in " ".join(done.stdout.split())
    refused = coterie("demo", "--reorganize-every", "often", "--out", str(tmp_path / "x.json"))
    assert refused.stderr == "coterie: reorganize_every must be auto or a whole number; got 'often'\n"


def test_a_warning_is_one_line(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # so that it is put back
    monkeypatch.setattr(cli, "app", Mock())
    cli.main()
    assert warnings.formatwarning("it is random", UserWarning, "file.py", 7) == "coterie: it is random\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("demo", "--words", "3"), 1, "coterie: words must be at least 20,000; got 3\n"),
        (("demo", "--epochs", "zero"), 2, "Invalid value for '--epochs'"),
        (("nothing",), 2, "No such command 'nothing'"),
    ],
)
def test_mistakes_are_answered_without_a_traceback(arguments, code, said):
    done = coterie(*arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_cannot_be_written_is_told_before_the_work(tmp_path):
    done = coterie("demo", "--out", str(tmp_path))
    assert done.returncode == 1
    assert "is a folder: give the name of a file" in done.stderr
    assert "generated language" not in done.stdout


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("Storage size calculation overflowed with sizes=[9]"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"),
        MemoryError(),
    ],
)
def test_too_little_memory_is_told_in_one_line(monkeypatch, error):
    monkeypatch.setattr(cli, "app", Mock(side_effect=error))
    with pytest.raises(SystemExit, match="more memory than there is"):
        cli.main()


@pytest.mark.parametrize("said", ["a mistake of our own", "CUDA error: an illegal memory access was encountered"])
def test_our_own_mistakes_are_not_hidden(monkeypatch, said):
    monkeypatch.setattr(cli, "app", Mock(side_effect=RuntimeError(said)))
    with pytest.raises(RuntimeError, match=said):
        cli.main()


@pytest.mark.parametrize("arguments", [["--help"], ["lm", "train", "--help"], ["--version"]])
def test_help_loads_neither_torch_nor_numpy(arguments):
    program = (
        "import sys\nfrom coterie_lab.cli import app\n"
        f"app({arguments}, standalone_mode=False)\n"
        "assert not {'torch', 'numpy', 'sklearn'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout or done.stdout == f"coterie {__version__}\n"


def test_without_its_packages_the_command_says_which_extra_it_needs():
    program = "import sys; sys.modules['typer'] = None; import coterie_lab.cli"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == "coterie: the command line needs more packages: pip install 'coterie-softmax[lab]'\n"
