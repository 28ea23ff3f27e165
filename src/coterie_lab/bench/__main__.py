"""Benchmarks for maintainers, each written to one JSON file:

python -m coterie_lab.bench search OUT.json [cpu|cuda]     topk and beams against the dense product; a table in OUT.md
python -m coterie_lab.bench reorganization OUT.json        one reorganization of a million words
python -m coterie_lab.bench beforehand OUT.json DATA       clusters made before training, for a prepared text
python -m coterie_lab.bench training-step OUT.json DATA    a whole update of the language model, head against head
python -m coterie_lab.bench graphs OUT.json                ways to spare the host: CUDA graphs and torch.compile
python -m coterie_lab.bench explorer OUT.json              the report's page with 100,000 words, in a browser
"""

import sys
from importlib import import_module
from pathlib import Path

from coterie_lab.training.environment import describe
from coterie_lab.training.run import write_json, write_whole

SUBJECTS = {
    "search": "search.measured",
    "reorganization": "clusters.reorganization",
    "beforehand": "clusters.beforehand",
    "training-step": "training_step.measured",
    "graphs": "graphs.measured",
    "explorer": "page.measured",
}


def main() -> None:
    if len(sys.argv) < 3 or sys.argv[1] not in SUBJECTS:
        sys.exit(__doc__)
    _, subject, out, *given = sys.argv
    module, function = SUBJECTS[subject].split(".")
    found = getattr(import_module(f"coterie_lab.bench.{module}"), function)(*given)
    write_json(Path(out), {"environment": describe(), **found})
    if "rows" in found:
        from coterie_lab.bench.search import markdown

        write_whole(Path(out).with_suffix(".md"), markdown(found["rows"]) + "\n")
    print(f"written to {out}")


if __name__ == "__main__":
    main()
