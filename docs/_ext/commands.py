"""The directive `commands`: every command of the command line with its options, read from the program itself."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import typer.main
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from coterie_lab.cli import app


def leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The commands that do something, each with its full name."""
    if hasattr(command, "commands"):
        for part, inner in command.commands.items():
            yield from leaves(inner, f"{name} {part}")
    else:
        yield name, command


def panel(parameter: Any) -> str:
    return getattr(parameter, "rich_help_panel", None) or ""


class Commands(SphinxDirective):
    """A section for each command: what it does, how it is called, its options in groups."""

    def run(self) -> list[nodes.Node]:
        return [self.section(name, command) for name, command in leaves(typer.main.get_command(app), "coterie")]

    def section(self, name: str, command: Any) -> nodes.section:
        section = nodes.section("", nodes.title("", name), ids=[nodes.make_id(name)])
        context = typer.Context(command, info_name=name)
        usage = command.get_usage(context).removeprefix("Usage: ")
        for text in (command.help or "").split("\n\n"):
            section += nodes.paragraph("", text)
        section += nodes.literal_block(usage, usage, language="none")
        for group, parameters in groupby(command.params, panel):
            records = [record for one in parameters if (record := one.get_help_record(context))]
            if group and records:
                section += nodes.rubric("", group)
            options = nodes.definition_list()
            for term, text in records:
                term = nodes.term("", "", nodes.literal("", term))
                options += nodes.definition_list_item("", term, nodes.definition("", nodes.paragraph("", text)))
            if records:
                section += options
        return section


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
