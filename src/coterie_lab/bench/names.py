"""The names of the benchmark's heads, without importing any of them.

The names are the registry's; `cce` and `liger` are other packages' losses of a full softmax.
"""

GRAPH = "-graph"  # behind a name: timed as a CUDA graph
NAMES = (
    "self-organized", "self-organized-graph", "full", "full-compiled", "full-chunked", "adaptive", "cce", "liger",
)  # fmt: skip

PACKAGES = {"cce": "cut_cross_entropy", "liger": "liger_kernel"}  # that a head needs and the laboratory does not
