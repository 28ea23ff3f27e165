"""Makes the options of a command from the fields of a dataclass that `coterie_lab.options.option` declares."""

from collections.abc import Callable, Collection
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from coterie_lab.options import GROUPS, Option, choices, declared, pairs, parts

Command = Callable[..., None]


def takes(
    kind: type, best: Any = None, *, only: Collection[str] = (), but: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Gives a command an option for each declared field of the dataclass `kind`, or `only` for some, or all `but` some.

    The command is called with `given`: the fields that its user set, by name. `best`: the settings whose values
    `--help` shows as defaults, such as a preset's, or a word for where they come from.

        @app.command()
        @takes(Settings, from_preset("best"))
        def train(data: Path, *, given: dict[str, Any]) -> None: ...
    """
    known = {name: one for name, one in declared(kind).items() if name not in but and (name in only or not only)}
    hints = get_type_hints(kind)
    order = sorted(known, key=lambda name: GROUPS.index(known[name].group))
    shown = best if isinstance(best, str) else None
    defaults = {} if shown else vars(best or kind())
    generated = [_parameter(name, known[name], hints[name], defaults.get(name), shown) for name in order]

    def decorate(function: Command) -> Command:
        @wraps(function)
        def command(context: typer.Context, **values: Any) -> None:
            found = {name: values.pop(name) for name in order}
            sources = {name: context.get_parameter_source(name) for name in order}
            given = [name for name, source in sources.items() if source is not None and source.name != "DEFAULT"]
            function(**values, given={name: _value(known[name], hints[name], found[name]) for name in given})

        own = [one for name, one in signature(function, eval_str=True).parameters.items() if name != "given"]
        first = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        keyword_only = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in (*own, *generated)]
        command.__signature__ = Signature([first, *keyword_only])  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(name: str, known: Option, hint: Any, default: Any, shown: str | None) -> Parameter:
    """The parameter of a command that typer makes into the option of a field."""
    first, allowed = parts(hint)[0], choices(hint)
    told: dict[str, Any] = {"help": known.help, "rich_help_panel": known.group.capitalize() or None}
    if get_origin(first) is dict:
        first, default = list[str], [f"{key}={value}" for key, value in default.items()]
        told["metavar"] = "NAME=VALUE"
    elif allowed:  # plain text for typer: the settings check it and list the choices
        *words, last = *allowed, *(["a number"] if int in parts(hint) else [])
        told["help"] = f"{', '.join(words)} or {last}: {known.help}"
        first = str
        told["autocompletion"] = lambda: list(allowed)
    if default is None:
        first, told["show_default"] = first | None, shown or known.unset or False
    flags = known.flags or f"--{name.replace('_', '-')}"
    if first is bool and known.flags is None:
        flags += f"/--no-{name.replace('_', '-')}"
    annotation: Any = Annotated[first, typer.Option(flags, **told)]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _value(known: Option, hint: Any, value: Any) -> Any:
    """Converts a command-line value to the field's value."""
    if isinstance(value, list):
        return pairs(value)
    if choices(hint) and int in parts(hint) and value.isdecimal():
        return int(value)
    return None if known.off is not None and value == known.off else value
