"""`python -m benchmarks` is `coterie bench`."""

import sys

from coterie.cli import main

sys.argv.insert(1, "bench")
main()
