"""The variants to compare on summarization, with the published figures."""

from dataclasses import dataclass
from typing import Any

from coterie_lab.data.pairs import Reading
from coterie_lab.experiments import comparison
from coterie_lab.tasks.summarization.settings import Settings, from_preset


@dataclass(frozen=True)
class Variant(comparison.Variant):
    """A head and the source of its clusters."""

    clusters: Reading | None = None  # what the language model that learns its clusters reads
    published: str | None = None  # its name among the published rows

    def settings(self, preset: str, **given: Any) -> Settings:
        """Its settings, with those in `given` replaced."""
        return from_preset(preset, self.clusters is not None, **self.changed(given))

    def reading(self, preset: str) -> Reading | None:
        """What its clusters are learned from; in the paper, the titles."""
        return "titles" if self.clusters is not None and preset == "paper" else self.clusters


VARIANTS: dict[str, Variant] = {
    "full": Variant("full softmax", {"head": "full"}, published="Full softmax"),
    "full-compiled": Variant("full softmax, torch.compile", {"head": "full-compiled"}),
    "self-organized": Variant("self-organized", clusters="both", published="Self-organized HSM"),
    "titles": Variant("self-organized, clusters of the titles alone", clusters="titles"),
    "moving": Variant("self-organized, words move on", {"head_options": {"reorganize_every": "auto"}}, clusters="both"),
    "joint": Variant("self-organized, clusters from chance on"),
    "random-clusters": Variant("hierarchical, random clusters", {"head": "random-clusters"}),
    "hsm-frequency": Variant("hierarchical, frequency bins", {"head": "hsm-frequency"}),
}

# The paper's Tables 4 and 5, R-L. Other data than ours: Gigaword (3.8M pairs) to train on.
DUC: dict[str, tuple[float, float, float]] = {
    "TOPIARY": (25.16, 6.46, 20.12),
    "ABS+": (28.18, 8.49, 23.81),
    "RAS-Elman": (28.97, 8.26, 24.06),
    "words-lvt5k-1sent": (28.61, 9.42, 25.24),
    "Full softmax": (27.77, 9.01, 24.36),
    "Self-organized HSM": (29.20, 9.62, 25.65),
}
GIGAWORD: dict[str, tuple[float, float, float]] = {
    "ABS+": (29.76, 11.88, 26.42),
    "RAS-Elman": (33.78, 15.97, 31.15),
    "words-lvt5k-1sent": (33.17, 16.02, 30.98),
    "Full softmax": (33.54, 15.49, 31.52),
    "Self-organized HSM": (34.07, 16.00, 31.95),
}
MINUTES = {"Full softmax": 210, "Self-organized HSM": 63}  # Table 6
