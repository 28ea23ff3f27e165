"""How many tiles a grid has, and how large a block must be. Triton has both, for its compiler: from Python a call of
those takes longer than some of the kernels do."""


def n_tiles(n: int, size: int) -> int:
    """Tiles of a size that cover n."""
    return -(-n // size)


def power_of_two(n: int) -> int:
    """The least one that is no less than n."""
    return 1 << (n - 1).bit_length()
