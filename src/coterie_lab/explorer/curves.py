"""What a run's journals tell over time: the data of the paper's Figure 1."""

from dataclasses import dataclass, field
from pathlib import Path

from coterie_lab.training.logs import read_journal
from coterie_lab.training.run import Run


@dataclass(frozen=True)
class Curves:
    """Against updates: on the development text, and at each reorganisation; a head without clusters has less."""

    evaluated: list[int] = field(default_factory=list)
    perplexity: list[float] = field(default_factory=list)
    cluster_perplexity: list[float] = field(default_factory=list)
    in_cluster_perplexity: list[float] = field(default_factory=list)
    reorganized: list[int] = field(default_factory=list)
    share_of_words: list[float] = field(default_factory=list)
    share_of_mass: list[float] = field(default_factory=list)


def curves(path: Path) -> Curves:
    """From what a run wrote."""
    run = Run(path)
    seen = [record for record in read_journal(run.log) if record["event"] == "evaluate" and "perplexity" in record]
    moved = read_journal(run.reorganizations)
    return Curves(
        evaluated=[record["step"] for record in seen],
        perplexity=[record["perplexity"] for record in seen],
        cluster_perplexity=[record["cluster_perplexity"] for record in seen if "cluster_perplexity" in record],
        in_cluster_perplexity=[record["in_cluster_perplexity"] for record in seen if "in_cluster_perplexity" in record],
        reorganized=[record["step"] for record in moved],
        share_of_words=[record["share_of_words"] for record in moved],
        share_of_mass=[record["share_of_mass"] for record in moved],
    )
