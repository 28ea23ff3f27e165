"""The paper's Figure 1: perplexity, its two factors, and how many words moved, while a model trains."""

from dataclasses import dataclass
from pathlib import Path

from coterie.training.logs import read_journal
from coterie.training.run import Run


@dataclass(frozen=True)
class Curves:
    """Against updates: on the development text, and at each reorganisation."""

    evaluated: list[int]
    perplexity: list[float]
    cluster_perplexity: list[float]
    in_cluster_perplexity: list[float]
    reorganized: list[int]
    share_of_words: list[float]
    share_of_mass: list[float]


def curves(path: Path) -> Curves:
    """From what a run wrote."""
    run = Run(path)
    seen = [record for record in read_journal(run.log) if record["event"] == "evaluate"]
    moved = read_journal(run.reorganizations)
    return Curves(
        evaluated=[record["step"] for record in seen],
        perplexity=[record["perplexity"] for record in seen],
        cluster_perplexity=[record["cluster_perplexity"] for record in seen],
        in_cluster_perplexity=[record["in_cluster_perplexity"] for record in seen],
        reorganized=[record["step"] for record in moved],
        share_of_words=[record["share_of_words"] for record in moved],
        share_of_mass=[record["share_of_mass"] for record in moved],
    )


def draw(found: Curves, path: Path) -> None:
    """Writes the figure as PNG; without matplotlib there is none, and its data is in the report all the same."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")  # no window
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(7, 6), height_ratios=[2, 1])
    above.plot(found.evaluated, found.perplexity, label="perplexity")
    above.plot(found.evaluated, found.cluster_perplexity, label="of the cluster")
    above.plot(found.evaluated, found.in_cluster_perplexity, label="inside the cluster")
    above.set_yscale("log")
    above.set_ylabel("on the development text")
    above.legend()
    below.plot(found.reorganized, found.share_of_words, label="share of words moved")
    below.plot(found.reorganized, found.share_of_mass, label="their share of the text")
    below.set_xlabel("updates")
    below.set_ylim(0, 1)
    below.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
