"""The models of the experiments and their parts, fast on a GPU."""
