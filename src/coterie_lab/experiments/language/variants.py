"""The variants to compare: heads and ablations, as changes to the settings, with the published figures."""

from dataclasses import dataclass
from typing import Any

from coterie_lab.experiments import comparison
from coterie_lab.tasks.language.settings import Settings, from_preset


@dataclass(frozen=True)
class Variant(comparison.Variant):
    """A head in the recipe of a preset."""

    preset: str = "best"
    perplexity: float | None = None  # published (the paper's Table 1)
    minutes: float | None = None  # published (the paper's Table 2)
    ablation: bool = False  # the self-organized head with one change

    def settings(self, **given: Any) -> Settings:
        """Its settings, with those in `given` replaced."""
        return from_preset(self.preset, **self.changed(given))


def _head(label: str, head: str, perplexity: float | None = None, **options: Any) -> Variant:
    return Variant(label, {"head": head, "head_options": options}, perplexity=perplexity)


def _organized(label: str, **options: Any) -> Variant:
    return Variant(label, {"head": "self-organized", "head_options": options}, ablation=True)


VARIANTS: dict[str, Variant] = {
    "full": Variant("full softmax", {"head": "full"}, perplexity=144.17, minutes=77),
    # Without a CUDA graph: the host launches each kernel.
    "full-eager": Variant("full softmax, without a CUDA graph", {"head": "full", "graph": False}),
    "full-compiled": _head("full softmax, torch.compile", "full-compiled"),
    # With torch's initialisation, rather than biases from the counts, which the layer has.
    "full-random-biases": Variant(
        "full softmax, biases at random",
        {"head": "full", "head_options": {"biases": "random"}},
        perplexity=144.17,
        minutes=77,
    ),
    "full-compiled-random-biases": _head(
        "full softmax, torch.compile, biases at random", "full-compiled", biases="random"
    ),
    "full-chunked": _head("full softmax, F.linear_cross_entropy", "full-chunked"),
    "importance": _head("importance sampling", "importance", 166),
    "importance-random-biases": _head("importance sampling, biases at random", "importance", biases="random"),
    "importance-power": _head("importance sampling, unigram to the 3/4", "importance", proposal="power"),
    "importance-bigram": _head("importance sampling, bigrams", "importance", proposal="bigram"),
    "nce": _head("noise-contrastive estimation, renormalised", "nce"),
    "nce-random-biases": _head("noise-contrastive estimation, biases at random", "nce", biases="random"),
    "nce-learned": _head("noise-contrastive estimation, normaliser learned", "nce", normalizer="learned"),
    "hsm-frequency": _head("hierarchical, frequency bins", "hsm-frequency", 166),
    "hsm-frequency-root": _head("hierarchical, bins of √frequency", "hsm-frequency", by="root"),
    "hsm-similarity": _head("hierarchical, clusters of similar words", "hsm-similarity"),
    "hsm-brown": _head("hierarchical, Brown clusters", "hsm-similarity", by="brown"),
    "hsm-huffman": _head("hierarchical, Huffman tree", "hsm-huffman"),
    "differentiated": _head("D-softmax", "differentiated", 195),
    "adaptive": _head("adaptive softmax (torch)", "adaptive", 147),
    # All words share the network that encodes spelling: with the others' learning rate it diverges on text8.
    "cnn": Variant("CNN-softmax", {"head": "cnn", "projection_factor": 0.03}),
    "random-clusters": _head("hierarchical, random clusters", "random-clusters"),
    "self-organized": Variant("self-organized", perplexity=144.77, minutes=20),
    "paper": Variant("self-organized as printed: ReLU, λ = 1/f", preset="paper", perplexity=144.77, minutes=20),
    "paper-mean": Variant("as printed, but λ = 1 - 1/f", {"head_options": {"smoothing": "mean"}}, preset="paper"),
    "score-paper": _organized("score: the paper's", score="paper"),
    "table": _organized("statistic: the paper's table", statistic="table"),
    "no-projection": _organized("without projections", projection=False),
    "no-own-words": _organized("no word stands alone", own_words=0),
    "k-1000": _organized("K = 1,000", reorganize_every=1000),
    "k-4000": _organized("K = 4,000", reorganize_every=4000),
    "restless": _organized("K = 250, words move to the end", reorganize_every=250),
}

# The paper's Table 1 beyond its own two rows: those of it that a report has not trained, it lists all the same.
TABLE_1 = ("importance", "hsm-frequency", "differentiated", "adaptive")
PUBLISHED = {"full softmax (Grave et al.)": 144.0}
