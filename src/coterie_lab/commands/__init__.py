"""The commands of `coterie`."""
