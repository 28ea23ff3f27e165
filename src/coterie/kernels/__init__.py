"""The GPU kernels, in Triton. The rest of the package imports them only where it computes on a GPU."""
