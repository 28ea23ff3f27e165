"""Options declared once: as fields of a settings dataclass, with their help, their group and their limits.

    @dataclass(frozen=True, kw_only=True)
    class Settings:
        seed: int = option(0, "of everything drawn at random", "run", least=0)

        def __post_init__(self) -> None:
            check(self)

`coterie_lab.commands.parameters` makes the options of a command from such a class. Nothing here needs torch or typer.
"""

import json
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

GROUPS = ("", "model", "head", "optimizer", "data", "run")  # in the order of `--help`; "" stands with the usual options


@dataclass(frozen=True, kw_only=True)
class Option:
    """The metadata of an option: help, flags and limits."""

    help: str
    group: str = ""
    flags: str | None = None  # on the command line, if it is not the field's name, such as --tied/--untied
    unset: str | None = None  # what None means, for `--help`
    off: float | None = None  # the number that means None on the command line
    infinite: bool = False  # whether infinity is allowed
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None


def option(default: Any, help: str, group: str = "", **more: Any) -> Any:
    """A dataclass field with this default that commands offer as an option; `more`: other fields of `Option`."""
    metadata = {"option": Option(help=help, group=group, **more)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def declared(kind: type) -> dict[str, Option]:
    """The options of a settings class by name. A subclass may change a default and inherits the metadata."""
    found = {}
    for base in reversed(kind.__mro__):
        for name, one in vars(base).get("__dataclass_fields__", {}).items():
            if "option" in one.metadata:
                found[name] = one.metadata["option"]
    return found


def check(settings: Any) -> None:
    """Raises if a value has not its field's type, is none of its choices, or is outside its limits."""
    hints = get_type_hints(type(settings))
    for name, known in declared(type(settings)).items():
        value = getattr(settings, name)
        if (wanted := _wanted(hints[name], known, value)) is not None:
            raise ValueError(f"{name} must be {wanted}; got {value!r}")


def parts(hint: Any) -> tuple[Any, ...]:
    """The types of a field; both for `int | None`."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def choices(hint: Any) -> tuple[str, ...]:
    """The words that a field may hold, those of its Literal; () for any other field."""
    return tuple(word for part in parts(hint) if get_origin(part) is Literal for word in get_args(part))


_KINDS: dict[type, tuple[type | tuple[type, ...], str]] = {
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    float: ((int, float), "a finite number"),
    str: (str, "text"),
    dict: (dict, "names with values"),
}


def _wanted(hint: Any, known: Option, value: Any) -> str | None:
    """What a value should be, in words; None if it is valid."""
    if value is None and NoneType in parts(hint):
        return None
    words = choices(hint)
    if isinstance(value, str) and value in words:
        return None
    others = [part for part in parts(hint) if get_origin(part) is not Literal]
    if not others:
        return f"one of {', '.join(words)}"
    wanted = _wanted_kind(others[0], known, value)
    return wanted and " or ".join((*words, wanted))


def _wanted_kind(first: Any, known: Option, value: Any) -> str | None:
    if (kind := get_origin(first) or first) not in _KINDS:
        return None
    types, said = _KINDS[kind]
    if not isinstance(value, types) or (isinstance(value, bool) and kind is not bool):
        return said
    if isinstance(value, float) and not math.isfinite(value) and not (known.infinite and value > 0):
        return said
    limits = [(holds, limit, said) for name, holds, said in _LIMITS if (limit := getattr(known, name)) is not None]
    if all(holds(value, limit) for holds, limit, _ in limits):
        return None
    return " and ".join(said.format(limit) for _, limit, said in limits)


_LIMITS: tuple[tuple[str, Callable[[Any, Any], bool], str], ...] = (
    ("least", operator.ge, "at least {:,}"),
    ("above", operator.gt, "above {:,}"),
    ("most", operator.le, "at most {:,}"),
    ("below", operator.lt, "below {:,}"),
)


def pairs(texts: list[str]) -> dict[str, Any]:
    """Parses NAME=VALUE texts to a dictionary; a value is JSON if it parses, else text."""
    return dict(map(_pair, texts))


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"an option takes NAME=VALUE; got {text!r}")
    try:
        return name, json.loads({"None": "null", "True": "true", "False": "false"}.get(value, value))
    except json.JSONDecodeError:
        return name, value
