"""Sizes of grids and blocks. Triton has both functions, but calling its own from Python takes longer than a kernel."""


def n_tiles(n: int, size: int) -> int:
    """The number of tiles of `size` that cover n."""
    return -(-n // size)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()
