"""Reference summaries: lines of text files, one summary each, with the same number of lines."""

from dataclasses import dataclass
from pathlib import Path

from coterie_lab.data.reading import lines as lines_of

LONGEST = 10_000  # bytes of a line: ROUGE-L's time grows with the product of two lengths
SENTENCES = "input.txt"


@dataclass(frozen=True)
class Duc:
    """A test set like DUC-2004: sentences with several references each."""

    sentences: list[str]
    references: list[tuple[str, ...]]

    @classmethod
    def open(cls, folder: Path) -> "Duc":
        """Reads a folder with input.txt and task1_ref0.txt, …; raises if their lengths differ."""
        file = folder / SENTENCES
        if not file.is_file():
            raise ValueError(
                f"{folder} should be DUC-2004's folder, with {SENTENCES} and task1_ref0.txt …: no {SENTENCES}"
            )
        sentences = list(lines_of(file))
        wanted = [read_references(one, file, len(sentences)) for one in reference_files([], folder)]
        return cls(sentences, list(zip(*wanted, strict=True)))


def read_lines(file: Path) -> list[str]:
    """The lines of a text file, one summary each, which may be empty."""
    lines = list(lines_of(file))
    for number, line in enumerate(lines, start=1):
        if (n_bytes := len(line.encode())) > LONGEST:
            raise ValueError(
                f"{file}, line {number:,} has {n_bytes:,} bytes, a summary at most {LONGEST:,}: put one a line"
            )
    return lines


def read_references(file: Path, hypotheses: Path, count: int) -> list[str]:
    """The lines of a reference file; raises unless there is one for each hypothesis, and none is empty."""
    lines = read_lines(file)
    if len(lines) != count:
        short, longer = (file, hypotheses) if len(lines) < count else (hypotheses, file)
        raise ValueError(
            f"{hypotheses} has {count:,} lines and {file} has {len(lines):,}: line {min(count, len(lines)) + 1:,} of "
            f"{longer} has no counterpart in {short}; each line of the one belongs to the same line of the other"
        )
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise ValueError(f"{file}, line {number:,} is empty: take that line out of all files, or fill it in")
    return lines


def reference_files(named: list[Path], folder: Path | None) -> list[Path]:
    """The reference files: those named, or those in a folder with Gigaword's or DUC's layout."""
    if bool(named) == (folder is not None):
        raise ValueError("give the references by --reference FILE, repeated for several, or by --references DIR")
    if folder is None:
        return named
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: --references takes one with task1_ref0.txt, …; --reference a file")
    found = sorted(folder.glob("task1_ref*.txt"))
    if not found:
        raise FileNotFoundError(f"{folder} holds no task1_ref0.txt, …: name the files by --reference")
    return found
