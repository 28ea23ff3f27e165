"""`python -m coterie_lab` is `coterie`."""

from coterie_lab.cli import main

main()
