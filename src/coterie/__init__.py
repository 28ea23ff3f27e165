"""An exact output layer for very large vocabularies, whose word clusters organise themselves while the model trains."""

from coterie.clustering.partition import Partition
from coterie.metrics import Measures, Reorganization
from coterie.softmax import HeadOutput, SelfOrganizedSoftmax

__version__ = "0.1.0"
__all__ = ["HeadOutput", "Measures", "Partition", "Reorganization", "SelfOrganizedSoftmax"]
