"""Collects the content of a page from runs' folders."""

from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from coterie.softmax import SelfOrganizedSoftmax
from coterie_lab.explorer.explorer import Organized
from coterie_lab.training import checkpoint
from coterie_lab.training.logs import read_journal
from coterie_lab.training.moves import read_moves, until
from coterie_lab.training.run import Run, read_json


@dataclass(frozen=True)
class Curves:
    """Curves over updates: evaluations and reorganizations; a head without clusters has only some of them."""

    evaluated: list[int] = field(default_factory=list)
    perplexity: list[float] = field(default_factory=list)
    cluster_perplexity: list[float] = field(default_factory=list)
    in_cluster_perplexity: list[float] = field(default_factory=list)
    reorganized: list[int] = field(default_factory=list)
    share_of_words: list[float] = field(default_factory=list)
    share_of_mass: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Content:
    """The content of one run on the page."""

    name: str
    head: str
    curves: Curves
    facts: dict[str, Any] = field(default_factory=dict)  # headline numbers, as far as they are known
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    organized: Organized | None = None  # None: there are no clusters, or there is no model yet

    def summary(self) -> dict[str, Any]:
        """Everything but the explorer, as plain data for JSON."""
        shown = ("name", "head", "facts", "settings", "environment")
        return {"curves": asdict(self.curves), **{name: getattr(self, name) for name in shown}}


# Each kind of task, and the module that opens its runs.
KINDS = {
    "language model": "coterie_lab.tasks.language.trained",
    "summarizer": "coterie_lab.tasks.summarization.trained",
}


def collect(paths: list[Path]) -> list[Content]:
    """The content of runs, each named by its folder, or by more of its path if names are equal."""
    named = names(paths)
    return [_collect(path, name) for path, name in zip(paths, named, strict=True)]


def _collect(path: Path, name: str) -> Content:
    run = Run(path)
    if not run.config.is_file():
        raise ValueError(f"{path} is not a run: there is no {run.config.name} in it")
    config = read_json(run.config)
    kind = config.get("kind") if isinstance(config, dict) else None
    if kind not in KINDS:
        raise ValueError(
            f"{run.config} is not of a run that can be shown: its kind is {kind!r}, not {' or '.join(KINDS)}"
        )
    Run.open(path, kind)  # raises if something else is wrong with it
    organized, facts = None, _facts(run, config)
    if run.best.exists():
        trained = import_module(KINDS[kind]).Trained.open(path, "cpu")
        facts["words"] = len(trained.words)
        if isinstance(head := trained.model.head, SelfOrganizedSoftmax):
            facts["clusters"] = int((head.partition.sizes > 0).sum())
            facts["alone"] = head.partition.own.numel()
            facts["random"] = head.partition.random
            if facts["clusters"]:
                moves = until(read_moves(run.moves), checkpoint.load(run.best)["evaluation"]["step"])
                organized = Organized(head, trained.words, head.counts, moves)
    started = read_journal(run.environments)
    return Content(
        name=name, head=config["settings"].get("head", kind), curves=curves(path), facts=facts,
        settings=config["settings"], environment=started[-1] if started else {}, organized=organized,
    )  # fmt: skip


def _facts(run: Run, config: dict[str, Any]) -> dict[str, Any]:
    """The best evaluation, the time and speed of training, and whether the run is finished."""
    records = [record for record in read_journal(run.log) if record["event"] != "built"]
    looks = [record for record in records if record["event"] == "evaluate"]
    rates = sorted(record["words_per_second"] for record in records if "words_per_second" in record)
    facts: dict[str, Any] = {"finished": run.result.exists()}
    if looks:
        best = min(looks, key=lambda record: float(record["loss"]))
        figures = ("perplexity", "cluster_perplexity", "in_cluster_perplexity", "step")
        facts |= {name: best[name] for name in figures if name in best}
    if records:
        facts |= {"updates": records[-1]["step"], "seconds": records[-1]["seconds"]}
    if rates:
        facts["words_per_second"] = rates[len(rates) // 2]
    facts |= {name: value for name, value in config.get("corpus", {}).items() if name in ("train_words", "dev_words")}
    return facts


def names(paths: list[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    parts = [path.resolve().parts for path in paths]
    if len(set(parts)) < len(parts):
        raise ValueError("a run is named twice: give each run once")
    for length in range(1, max(map(len, parts)) + 1):
        found = ["/".join(part[-length:]) for part in parts]
        if len(set(found)) == len(found):
            return found
    return [str(path) for path in paths]


def curves(path: Path) -> Curves:
    """The curves in a run's logs."""
    run = Run(path)
    seen = [record for record in read_journal(run.log) if record["event"] == "evaluate" and "perplexity" in record]
    moved = read_journal(run.reorganizations)

    def column(records: list[dict[str, Any]], name: str) -> list[Any]:
        return [record[name] for record in records if name in record]

    factors = {name: column(seen, name) for name in ("perplexity", "cluster_perplexity", "in_cluster_perplexity")}
    shares = {name: column(moved, name) for name in ("share_of_words", "share_of_mass")}
    return Curves(evaluated=column(seen, "step"), reorganized=column(moved, "step"), **factors, **shares)
