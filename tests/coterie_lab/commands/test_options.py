"""Options are declared once, as fields of settings: what a command makes of them, and what it refuses."""

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from coterie_lab.cli import app
from coterie_lab.commands.parameters import takes
from coterie_lab.commands.summarization import TRANSFORMERS
from coterie_lab.data.settings import PairSettings, TextSettings
from coterie_lab.demo.settings import Setting
from coterie_lab.heads import HEADS
from coterie_lab.options import check, declared, option
from coterie_lab.tasks.language import settings as language
from coterie_lab.tasks.summarization import settings as summarization


def help_of(*command: str) -> str:
    """The help of a command on a wide screen, each row in one line."""
    done = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"})
    assert done.exit_code == 0
    return done.stdout


@pytest.mark.parametrize(
    ("command", "settings", "left_out"),
    [
        (("lm", "train"), language.from_preset(), ()),
        (("summarize", "train"), summarization.from_preset(), ()),
        (("summarize", "cluster"), summarization.language_settings("both"), ("head", "model", *TRANSFORMERS)),
        (("lm", "prepare"), TextSettings(), ()),
        (("summarize", "prepare"), PairSettings(), ()),
        (("demo",), Setting(), ()),
    ],
)
def test_every_setting_is_an_option_with_help_and_its_default(command, settings, left_out):
    known = declared(type(settings))
    assert set(known) == {field.name for field in fields(settings)}
    rows = [row.strip("│* ") for row in help_of(*command).splitlines()]
    for name in set(known) - set(left_out):
        flags = (known[name].flags or f"--{name.replace('_', '-')}").split("/")
        [row] = [row for row in rows if row.startswith(f"{flags[0]} ")]
        value = getattr(settings, name)
        if value is None:
            shown = f"({known[name].unset})"
        elif value is False and flags == [known[name].flags]:
            shown = ""  # a switch that is only ever turned on
        elif isinstance(value, bool):
            yes, no = flags if len(flags) == 2 else (flags[0], flags[0].replace("--", "--no-"))
            shown = (yes if value else no).removeprefix("--")
        elif isinstance(value, dict):
            shown = ", ".join(f"{key}={value}" for key, value in value.items())
        else:
            shown = str(value)
        assert f"{known[name].help} [default: {shown}]".removesuffix(" [default: ]") in " ".join(row.split())
    for name in left_out:
        assert not any(row.startswith(f"--{name} ") for row in rows)


def test_options_are_grouped():
    text = help_of("lm", "train")
    places = [text.index(f"─ {panel} ─") for panel in ("Options", "Model", "Head", "Optimizer", "Data", "Run")]
    assert places == sorted(places)


def test_every_command_and_every_parameter_has_help():
    def commands(group, path=()):
        for name, one in group.commands.items():
            yield from commands(one, (*path, name)) if hasattr(one, "commands") else [((*path, name), one)]

    found = dict(commands(get_command(app)))
    assert len(found) == 16
    for path, command in found.items():
        assert command.help, path
        assert all(one.help for one in command.params), (path, [one.name for one in command.params if not one.help])


def test_the_head_option_names_heads_that_exist():
    named = declared(language.Settings)["head"].help.removeprefix("the softmax: ").removesuffix(", …").split(", ")
    assert set(named) < set(HEADS)


def test_completion_offers_the_choices():
    words = {"COMP_WORDS": "coterie lm train --schedule c", "COMP_CWORD": "4"}
    done = CliRunner().invoke(app, [], prog_name="coterie", env={"_COTERIE_COMPLETE": "complete_bash", **words})
    assert done.stdout.split() == ["constant", "cosine"]


@dataclass(frozen=True, kw_only=True)
class Small:
    """Settings of each kind."""

    rate: float = option(0.5, "a number", "optimizer", above=0, below=1)
    size: int | None = option(None, "a whole number", "model", unset="as it comes", least=1, most=8)
    limit: float | None = option(1.0, "a limit", off=0, above=0, infinite=True)
    kind: Literal["one", "two"] = option("one", "a choice")
    every: int | Literal["auto"] = option("auto", "a choice or a number", least=2)
    dense: bool = option(True, "a switch", flags="--dense/--sparse")
    more: dict[str, Any] = option({}, "others", flags="--more")
    hidden: int = 3  # not declared: no option

    def __post_init__(self):
        check(self)


@dataclass(frozen=True, kw_only=True)
class Smaller(Small):
    """The same with another default."""

    rate: float = 0.25


def run(*arguments):
    """What a command that takes these settings is called with."""
    called, program = [], typer.Typer()

    @program.command()
    @takes(Smaller)
    def command(name: str, *, given: dict[str, Any]) -> None:
        called.append((name, given, Smaller(**given)))

    done = CliRunner().invoke(program, ["x", *arguments])
    return (*called[0], done.stdout) if called else done.exception or done


def test_only_what_was_given_reaches_the_command():
    assert run()[:3] == ("x", {}, Smaller())
    assert run("--rate", "0.25", "--sparse")[1] == {"rate": 0.25, "dense": False}  # given, though it is the default
    assert run("--more", "a=1", "--more", "b=x", "--more", "c=None")[1] == {"more": {"a": 1, "b": "x", "c": None}}
    assert run("--limit", "0")[1] == {"limit": None}
    assert run("--every", "7")[1] == {"every": 7}
    assert run("--every", "auto")[1] == {"every": "auto"}
    assert run("--limit", "inf")[1] == {"limit": math.inf}
    assert Smaller(hidden=4).rate == 0.25


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rate": 1.0}, "rate must be above 0 and below 1; got 1.0"),
        ({"rate": 0}, "rate must be above 0 and below 1; got 0"),
        ({"rate": math.nan}, "rate must be a finite number; got nan"),
        ({"rate": None}, "rate must be a finite number; got None"),
        ({"rate": True}, "rate must be a finite number; got True"),
        ({"size": 9}, "size must be at least 1 and at most 8; got 9"),
        ({"size": 1.5}, "size must be a whole number; got 1.5"),
        ({"limit": -math.inf}, "limit must be a finite number; got -inf"),
        ({"kind": "three"}, "kind must be one of one, two; got 'three'"),
        ({"every": "seldom"}, "every must be auto or a whole number; got 'seldom'"),
        ({"every": 1}, "every must be auto or at least 2; got 1"),
        ({"every": None}, "every must be auto or a whole number; got None"),
        ({"dense": 1}, "dense must be true or false; got 1"),
        ({"more": "x"}, "more must be names with values; got 'x'"),
    ],
)
def test_what_a_setting_may_not_be_is_refused_in_one_sentence(given, said):
    with pytest.raises(ValueError, match="must be") as refused:
        Smaller(**given)
    assert str(refused.value) == said
