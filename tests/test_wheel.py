"""The wheel, installed where nothing else is: the layer needs torch and numpy, the command line says what it needs."""

import re
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def run(*command, **options):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    done = run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def required(wheel, extras):
    """Distributions that the wheel requires, and those that they require."""
    name, version = wheel.name.split("-")[:2]
    found, waiting = {}, [(PathDistribution(zipfile.Path(wheel, f"{name}-{version}.dist-info/")), {*extras, ""})]
    while waiting:
        that, extras = waiting.pop()
        for wanted in map(Requirement, that.requires or []):
            if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in extras):
                known = found.setdefault(wanted.name, set())
                if new := {*wanted.extras, ""} - known:
                    known |= new
                    waiting.append((distribution(wanted.name), new))
    return [distribution(name) for name in found]


def installed(wheel, folder, extras=()):
    """The programs of an environment with the wheel and links to what it requires, and with nothing else."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for that in required(wheel, extras):
        for top in {file.parts[0] for file in that.files} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(that.locate_file(top))
    for command in (["install", "--no-deps", "--no-index", "--quiet", wheel], ["check"]):
        done = run(sys.executable, "-m", "pip", "--python", folder / "bin/python", *command)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "bin"


def test_everything_that_make_installs_is_pinned(wheel):
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.split("==")[0]) for line in lines if "==" in line}
    found = {canonicalize_name(that.name): that for that in required(wheel, ["dev"])}
    # torch pins NVIDIA's libraries itself.
    assert not {name for name in found.keys() - pinned if not name.startswith(("cuda-toolkit", "nvidia"))}
    pythons = {name: SpecifierSet(that.metadata["Requires-Python"] or "") for name, that in found.items()}
    assert not {name for name, accepted in pythons.items() if "3.11.0" not in accepted}


def test_without_extras_the_layer_trains_and_the_command_line_says_what_it_needs(wheel, tmp_path):
    programs = installed(wheel, tmp_path / "plain")
    step = """
import torch
from coterie import SelfOrganizedSoftmax
head = SelfOrganizedSoftmax(8, 100)
head(torch.randn(5, 8), torch.arange(5)).loss.backward()
head.step()
values, words = head.topk(torch.randn(8), 3)
"""
    done = run(programs / "python", "-I", "-W", "error", "-c", step)
    assert done.returncode == 0, done.stderr
    done = run(programs / "coterie", "--version")
    assert done.returncode == 1
    assert re.fullmatch(r"coterie: .*pip install 'coterie-softmax\[lab\]'.*\n", done.stderr)


def test_with_the_extra_lab_every_module_of_the_laboratory_loads(wheel, tmp_path):
    programs = installed(wheel, tmp_path / "lab", ["lab"])
    done = run(programs / "coterie", "--version")
    assert done.returncode == 0, done.stderr
    assert "0.1.0" in done.stdout
    load = """
import importlib, pkgutil, coterie_lab
for module in pkgutil.walk_packages(coterie_lab.__path__, "coterie_lab."):
    if not module.name.startswith(("coterie_lab.kernels", "coterie_lab.__main__")):
        importlib.import_module(module.name)
"""
    done = run(programs / "python", "-I", "-c", load)
    assert done.returncode == 0, done.stderr
