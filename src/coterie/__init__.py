"""An exact output layer for very large vocabularies, which reorganises its word clusters while the model trains."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie import graphs
    from coterie.clustering.partition import Partition
    from coterie.metrics import Measures, Reorganization
    from coterie.softmax import HeadOutput, SelfOrganizedSoftmax

__version__ = "0.1.0"
__all__ = ["HeadOutput", "Measures", "Partition", "Reorganization", "SelfOrganizedSoftmax", "graphs"]

# Public names are imported at their first use, so that `coterie --help` does not load torch.
_HOMES = {
    "HeadOutput": "coterie.softmax",
    "Measures": "coterie.metrics",
    "Partition": "coterie.clustering.partition",
    "Reorganization": "coterie.metrics",
    "SelfOrganizedSoftmax": "coterie.softmax",
}


def __getattr__(name: str) -> Any:
    if name == "graphs":
        return import_module("coterie.graphs")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
