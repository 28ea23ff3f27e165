"""Checks of a layer's options, inputs and checkpoints, and defaults that follow from V. Errors say what to do.

Shapes: T tokens, D width, V words, C clusters, S most words in a cluster.
"""

import math
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from coterie.clustering.partition import Partition, why_invalid

PAPER_BUDGET = 0.1


def check_options(
    *,
    in_features: int,
    n_classes: int,
    n_clusters: int | None,
    gamma: float,
    frequency_budget: float | None,
    own_words: Any,
    reorganize_every: int | str | None,
    reorganize_until: int | None,
    label_smoothing: float,
    ignore_index: int,
    **choices: tuple[Any, Sequence[Any]],
) -> None:
    """Raises for the first invalid option; `choices` are pairs (given, allowed)."""
    whole: dict[str, Any] = {
        "in_features": in_features, "n_classes": n_classes, "n_clusters": n_clusters, "ignore_index": ignore_index,
        "reorganize_until": reorganize_until,
    }  # fmt: skip
    for name, number in whole.items():
        check_whole(name, number, optional=name in ("n_clusters", "reorganize_until"))
    if in_features < 1:
        raise ValueError(f"in_features must be at least 1; got {in_features}")
    if n_classes < 2:
        raise ValueError(f"n_classes must be at least 2; got {n_classes}")
    if n_clusters is not None:
        check_clusters(n_clusters, n_classes)
    if not (gamma > 0 and math.isfinite(gamma)):
        raise ValueError(f"gamma must be above 0 (the paper's is 1.5); got {gamma}")
    if frequency_budget is not None and not frequency_budget > 0:
        raise ValueError(f"frequency_budget must be above 0 (the paper's is 0.1); got {frequency_budget}")
    if reorganize_every not in ("auto", None) and not (_is_whole(reorganize_every) and int(reorganize_every) >= 1):
        raise ValueError(
            'reorganize_every must be a whole number from 1, "auto", or None for a fixed partition; '
            f"got {reorganize_every!r}"
        )
    check_own_words(own_words, n_classes)
    if reorganize_until is not None and reorganize_until < 0:
        raise ValueError(f"reorganize_until must be a number of updates, or None; got {reorganize_until}")
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be at least 0 and below 1; got {label_smoothing}")
    for name, (given, allowed) in choices.items():
        if given not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {given!r}")


def check_clusters(n_clusters: int, n_classes: int) -> int:
    """Returns C; raises unless it is from 1 to V."""
    check_whole("n_clusters", n_clusters)
    if not 1 <= n_clusters <= n_classes:
        raise ValueError(f"n_clusters must be from 1 to n_classes = {n_classes}; got {n_clusters}")
    return n_clusters


def check_own_words(own_words: Any, n_classes: int) -> None:
    """Raises unless `own_words` is None, a number of words, or the ids of distinct words."""
    if own_words is None:
        return
    if _is_whole(own_words):
        if not 0 <= int(own_words) <= n_classes:
            raise ValueError(f"own_words must be from 0 to n_classes = {n_classes}; got {own_words}")
        return
    try:
        ids = torch.as_tensor(own_words).tolist()
    except (TypeError, ValueError, RuntimeError):
        ids = None
    if not isinstance(ids, list) or not all(map(_is_whole, ids)):
        raise ValueError(f"own_words must be a number of words, a list of their ids, or None; got {own_words!r}")
    for word in ids:
        if not 0 <= word < n_classes:
            raise ValueError(f"own_words names class {word}; classes are 0 to {n_classes - 1}")
    if len(set(ids)) < len(ids):
        raise ValueError("own_words names a class twice; give each once")


def check_whole(name: str, number: Any, optional: bool = False) -> None:
    """Raises unless `number` is an integer; None is allowed if it is optional."""
    if not (number is None and optional) and not _is_whole(number):
        raise ValueError(f"{name} must be a whole number{', or None' if optional else ''}; got {number!r}")


def _is_whole(number: Any) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool)


def check_k(k: int, n_classes: int, name: str = "k") -> None:
    """Raises unless k is from 1 to V."""
    if not 1 <= k <= n_classes:
        raise ValueError(f"{name} must be from 1 to n_classes = {n_classes}; got {k}")


def check_draw(n_classes: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Raises unless a class can be sampled with these options."""
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be finite and not negative; got {temperature}")
    if top_k is not None:
        check_k(top_k, n_classes, "top_k")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1; got {top_p}")


def check_hidden(hidden: Tensor, weight: Tensor) -> None:
    """Raises unless hidden vectors (..., D) fit the word vectors (V, D)."""
    width = weight.shape[1]
    if hidden.ndim == 0 or hidden.shape[-1] != width:
        raise ValueError(f"hidden must be (..., {width}) wide; got shape {tuple(hidden.shape)}")
    if hidden.dtype != weight.dtype and not torch.is_autocast_enabled(hidden.device.type):
        raise TypeError(
            f"hidden is {hidden.dtype}, the layer {weight.dtype}: convert one of them, or use torch.autocast"
        )


def check_target(hidden: Tensor, target: Tensor) -> Tensor:
    """Returns the targets (...) as int64; raises unless they are integers, one for each hidden vector (..., D)."""
    if target.shape != hidden.shape[:-1] or target.is_floating_point() or target.is_complex():
        raise ValueError(
            f"target must be class numbers in hidden's leading shape {tuple(hidden.shape[:-1])}; "
            f"got {tuple(target.shape)} of {target.dtype}"
        )
    return target.to(torch.int64)


def check_counts(counts: Tensor | Sequence[int], n_classes: int) -> Tensor:
    """Returns the counts as int64, (V,); raises unless they are whole numbers that can be added up exactly."""
    if isinstance(counts, Tensor) and counts.is_meta:
        raise ValueError("counts are on the meta device and hold no numbers; give them on the CPU")
    try:
        given = torch.as_tensor(counts, device="cpu").detach()  # not on torch's default device, if one is set
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"counts must be a tensor or a list of numbers, one per class; got {type(counts)}") from error
    if given.is_complex():
        raise ValueError(f"counts must be whole numbers; got {given.dtype}")
    if given.shape != (n_classes,):
        raise ValueError(f"counts must have one number per class, shape ({n_classes},); got {tuple(given.shape)}")
    if given.is_floating_point():
        if not bool(torch.isfinite(given).all()):
            first = int((~torch.isfinite(given)).nonzero()[0])
            raise ValueError(f"counts must be finite; class {first} has {float(given[first])}")
        if not bool((given == given.round()).all()):
            first = int((given != given.round()).nonzero()[0])
            raise ValueError(
                f"counts must be whole numbers, so that they add up to the same on every machine; class {first} has "
                f"{float(given[first])}. Given frequencies? Multiply them by the number of tokens and round"
            )
    if bool((given.double().abs() > 2**53).any()) or float(given.double().sum()) > 2**53:
        raise ValueError("counts must add up to at most 2^53; divide them all by the same number")
    given = given.to(torch.int64)
    if bool((given < 0).any()):
        first = int((given < 0).nonzero()[0])
        raise ValueError(f"counts must not be negative; class {first} has {int(given[first])}")
    if not bool(given.any()):
        raise ValueError("counts are all zero; give how often each class occurs, or None where it is not known")
    return given.clone()


def default_clusters(n_classes: int) -> int:
    """√V, rounded up; from 64 on to a multiple of 8, because a GPU takes four times as long for odd widths."""
    root = math.isqrt(n_classes - 1) + 1
    return root if root < 64 else -(-root // 8) * 8


def cluster_capacity(n_classes: int, n_clusters: int, gamma: float) -> int:
    """S, the most words a cluster may hold: γ√V, or γV/C if there are fewer than √V clusters."""
    capacity = math.ceil(gamma * max(math.sqrt(n_classes), n_classes / n_clusters))
    if capacity * n_clusters < n_classes:
        raise ValueError(
            f"gamma = {gamma} gives {n_clusters} clusters of at most {capacity} words each for {n_classes} words: "
            "raise gamma above 1 (the paper's is 1.5) or n_clusters"
        )
    return capacity


def default_budget(n_classes: int, n_clusters: int, capacity: int) -> float:
    """The frequency budget by default: the paper's 0.1, or the smallest that always leaves every word a cluster.

    At most k = 1/f_b clusters can reach the budget f_b. Even if each of them holds a single word, the others must have
    room for the rest: (C - k) · S + k ≥ V.
    """
    may_close = (n_clusters * capacity - n_classes) // max(capacity - 1, 1)
    return max(PAPER_BUDGET, 1 / (may_close + 0.5))


def why_unfit(
    state: Mapping[str, Tensor],
    prefix: str,
    shape: tuple[int, int, int],
    partition: Partition,
    statistic: str | None,
) -> str | None:
    """Why a layer of `shape` (V, C, D), with such a partition and `statistic`, cannot load a state dict; None if it
    can."""
    kinds = [kind for kind in ("mean_hidden", "table") if f"{prefix}{kind}._extra_state" in state]
    if kinds and statistic is None:
        return (
            "the checkpoint is of a layer that learns its clusters, this one was built with reorganize_every=None: "
            "build it as the checkpoint's was"
        )
    if kinds and statistic not in kinds:
        return f"the checkpoint's statistic is {kinds[0]!r}, the layer's {statistic!r}: build the layer with that"
    weight, clusters = state.get(prefix + "weight"), state.get(prefix + "cluster_weight")
    if weight is not None and clusters is not None:
        given = (weight.shape[0], clusters.shape[0], weight.shape[1])
        if given != shape:
            return (
                "the checkpoint holds {} classes in {} clusters, width {}; the layer was built for {} classes in {} "
                "clusters, width {}: build it with the checkpoint's sizes"
            ).format(*given, *shape)
    cluster_of, digest = state.get(prefix + "partition.cluster_of"), state.get(prefix + "partition.digest")
    if cluster_of is None or cluster_of.shape != shape[:1] or cluster_of.is_meta:
        return None
    n_clusters, capacity, n_own, n_words = shape[1], partition.capacity, partition.n_own, shape[0]
    reason = why_invalid(cluster_of, digest, n_clusters, capacity, n_own, n_words)
    return f"the checkpoint has no clusters that fit: {reason}" if reason else None
