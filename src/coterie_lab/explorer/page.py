"""Builds the page: one HTML file that contains everything it needs and may load nothing.

Our own HTML, CSS and JavaScript lie in `page/`; the charts are Bokeh's, whose JavaScript comes with the Python package.
A policy in the page forbids every request, and every script but those whose hashes it names: a word that looks like a
script stays a word.
"""

import base64
import gzip
import hashlib
import html
import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

from coterie_lab.explorer.collect import Content
from coterie_lab.explorer.explorer import explore, history
from coterie_lab.needed import needed_for

STYLES = ("base.css", "explorer.css", "live.css", "beam.css")
SCRIPTS = ("dom.js", "data.js", "charts.js", "moves.js", "map.js", "explorer.js", "live.js", "beam.js", "main.js")
BOKEH = ("bokeh.min.js", "bokeh-api.min.js")


def build(contents: list[Content], live: str | None = None) -> str:
    """The page of some runs; `live`: the kind of model that `coterie serve` lets it ask, at its own server."""
    own = files("coterie_lab.explorer") / "page"
    # One module, whose files see each other's names and which the page runs last.
    module = "\n".join((own / name).read_text(encoding="utf-8") for name in SCRIPTS)
    scripts = [("", script) for script in _bokeh()] + [(' type="module"', module)]
    hashes = " ".join(f"'sha256-{_hash(script)}'" for _, script in scripts)
    asks = "'self'" if live else "'none'"
    summary = {"live": live, "runs": [content.summary() for content in contents]}
    parts = {
        "POLICY": f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {asks}; base-uri 'none'; form-action 'none'",
        "TITLE": html.escape(", ".join(content.name for content in contents)),
        "STYLE": "\n".join((own / name).read_text(encoding="utf-8") for name in STYLES),
        "DATA": "\n".join([_data("summary", summary), *_blobs(contents)]),
        "SCRIPTS": "\n".join(f"<script{kind}>{script}</script>" for kind, script in scripts),
    }
    before, *pieces = (own / "page.html").read_text(encoding="utf-8").split("{{")
    filled = [before]
    for piece in pieces:  # substituted text is not searched again, whatever it contains
        name, rest = piece.split("}}", 1)
        filled += [parts[name], rest]
    return "".join(filled)


def _bokeh() -> list[str]:
    """Bokeh's own scripts, from the installed package."""
    with needed_for("a report"):
        import bokeh
    folder = Path(bokeh.__file__).parent / "server/static/js"
    return [(folder / name).read_text(encoding="utf-8").replace("</script", "<\\/script") for name in BOKEH]


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _blobs(contents: list[Content]) -> list[str]:
    """The large parts, compressed, in an element each, which the page decompresses when needed."""
    large: dict[str, Any] = {}
    for number, content in enumerate(contents):
        if content.organized is not None:
            large[f"explorer-{number}"] = explore(content.organized)
            large[f"history-{number}"] = history(content.organized.moves)
    found = []
    for name, part in large.items():
        if part is not None:
            packed = gzip.compress(json.dumps(part, separators=(",", ":")).encode(), 6, mtime=0)
            found.append(f'<script type="application/gzip" id="{name}">{base64.b64encode(packed).decode()}</script>')
    return found


def _data(name: str, content: Any) -> str:
    """JSON in which nothing looks like HTML."""
    text = json.dumps(finite(content))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{name}">{text}</script>'


def finite(content: Any) -> Any:
    """The content with null in place of NaN and infinity."""
    if isinstance(content, dict):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, list):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
