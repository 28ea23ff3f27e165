"""Packages that only parts of the laboratory need."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed_for(what: str) -> Iterator[None]:
    """Around an import: if the package is missing, says what needs it and how to install it."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{what} needs the package {error.name}: pip install 'coterie-softmax[lab]'") from error
