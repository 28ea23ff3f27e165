"""Triton kernels of the laboratory: Adam over a large matrix, the gradient of an embedding."""
