"""An exact output layer for very large vocabularies, whose word clusters organise themselves while the model trains."""

from coterie.head import HeadOutput, SelfOrganizedSoftmax
from coterie.measures import Measures, Reorganization
from coterie.partition import Partition

__version__ = "0.1.0"
__all__ = ["HeadOutput", "Measures", "Partition", "Reorganization", "SelfOrganizedSoftmax"]
