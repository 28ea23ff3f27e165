"""The partition of words into clusters, as index tensors.

A word can also stand alone, as a cluster of one beside the others: then its cluster is C, one past the last.

Shapes: V words, C clusters, N places for words that stand alone, S most words in a cluster.
"""

import json
import operator
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

FORMAT = "coterie-partition"
UNMOVED = "no reorganisation has moved a word yet. Train for longer, with head.step() after every optimizer.step()"


class Partition(nn.Module):
    """Assigns every word to exactly one cluster, or lets it stand alone (cluster C).

    It is a module without parameters, so that its buffers move with the layer and are part of its `state_dict`. Only
    `cluster_of` is saved; the other buffers are derived from it, so that a checkpoint cannot contradict itself.

    >>> partition = Partition.from_lists([[0, 3], [1, 2, 4]])
    >>> partition.cluster_of, partition.sizes, partition.members(1)
    (tensor([0, 1, 1, 0, 1]), tensor([2, 3]), tensor([1, 2, 4]))
    """

    cluster_of: Tensor  # (V,) the cluster of each word; C: it stands alone
    words: Tensor  # (V,) the words sorted by cluster, ascending inside a cluster; those that stand alone come last
    offsets: Tensor  # (C + 2,) cluster c holds words[offsets[c]:offsets[c + 1]]; for c = C, the words that stand alone
    position: Tensor  # (V,) the index of each word in `words`
    slots: Tensor  # (N,) the words that stand alone; in the places that are left, any word
    root_sizes: Tensor  # (C + N,) the words in each column of the root: those of a cluster, then 1 or 0 for each slot
    digest: Tensor  # () a hash of `cluster_of`, which an average of cluster numbers does not have

    def __init__(
        self, cluster_of: Tensor | Sequence[int], n_clusters: int, capacity: int | None = None, n_own: int = 0
    ) -> None:
        """`cluster_of` (V,), `n_clusters` C, `capacity` S (None: the size of the largest cluster), `n_own` N."""
        super().__init__()
        # A list is read on the CPU, even if layers are being built on the meta device.
        cluster_of = cluster_of if isinstance(cluster_of, Tensor) else torch.as_tensor(cluster_of, device="cpu")
        if cluster_of.ndim != 1 or cluster_of.numel() == 0 or cluster_of.is_floating_point():
            raise ValueError(
                f"cluster_of must be one whole number per word, shape (V,); "
                f"got shape {tuple(cluster_of.shape)} of {cluster_of.dtype}"
            )
        cluster_of = cluster_of.to(torch.int64)
        _check_range(cluster_of, n_clusters, n_own)
        fullest = int(torch.bincount(cluster_of, minlength=n_clusters)[:n_clusters].max())
        self.n_words = cluster_of.numel()
        self.n_clusters, self.n_own = n_clusters, n_own
        self.random = False  # whether it is still as it was drawn at random
        self.capacity = fullest if capacity is None else capacity
        if fullest > self.capacity:
            raise ValueError(f"a cluster holds {fullest} words, more than the capacity of {self.capacity}")
        device = cluster_of.device
        self.register_buffer("cluster_of", torch.zeros(self.n_words, dtype=torch.int64, device=device))
        self.register_buffer("digest", torch.zeros((), dtype=torch.int64, device=device))
        self._derived: tuple[Tensor, int] | None = None  # what the index is derived from, and its version
        lengths = {
            "words": self.n_words, "offsets": n_clusters + 2, "position": self.n_words, "slots": n_own,
            "root_sizes": n_clusters + n_own,
        }  # fmt: skip
        for name, length in lengths.items():
            empty = torch.zeros(length, dtype=torch.int64, device=device)
            self.register_buffer(name, empty, persistent=False)
        self.assign_(cluster_of)

    @torch.no_grad()
    def assign_(self, cluster_of: Tensor, random: bool = False) -> None:
        """Assigns every word anew, in-place: captured CUDA graphs read the same memory. `cluster_of` (V,)."""
        self.random = random
        if cluster_of is not self.cluster_of:
            self.cluster_of.copy_(cluster_of)
        self.digest.copy_(digest(self.cluster_of))
        self._derive()

    def refresh(self) -> None:
        """Derives the index anew if somebody else has written to `cluster_of`: a checkpoint, an average, a broadcast.

        Raises if what it finds there is no partition. Does nothing in a compiled or captured step.
        """
        if torch.compiler.is_compiling():
            return
        given = self.cluster_of
        if self._derived is not None and self._derived[0] is given and self._derived[1] == _writes(given):
            return
        if given.is_meta:
            return
        if given.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        if reason := why_invalid(given, self.digest, self.n_clusters, self.capacity, self.n_own, self.n_words):
            raise RuntimeError(f"this layer has no valid clusters: {reason}")
        self._derive()

    @torch.no_grad()
    def _derive(self) -> None:
        """Writes the index; in place where it is on the right device."""
        cluster_of = self.cluster_of
        for name in ("words", "offsets", "position", "slots", "root_sizes"):
            index: Tensor = getattr(self, name)
            if index.device != cluster_of.device:
                with torch.inference_mode(False):  # it will be written to in training, too
                    setattr(self, name, torch.empty_like(index, device=cluster_of.device))
        words = cluster_of.argsort(stable=True)
        self.offsets[0] = 0
        self.offsets[1:] = torch.bincount(cluster_of, minlength=self.n_clusters + 1).cumsum(0)
        self.words.copy_(words)
        self.position[words] = torch.arange(self.n_words, device=words.device)
        self._derived = cluster_of, _writes(cluster_of)
        place = self.offsets[-2] + torch.arange(self.n_own, device=words.device)
        self.slots.copy_(words[place.clamp(max=self.n_words - 1)])
        self.root_sizes[: self.n_clusters] = self.offsets[:-1].diff()
        self.root_sizes[self.n_clusters :] = place < self.n_words

    @property
    def sizes(self) -> Tensor:
        """The number of words in each cluster, (C,)."""
        self.refresh()
        return self.offsets[:-1].diff()

    @property
    def own(self) -> Tensor:
        """The words that stand alone, ascending."""
        self.refresh()
        return self.words[int(self.offsets[-2]) :]

    def __getstate__(self) -> dict[str, Any]:
        # A copy's tensors count their versions anew, and one day a number would fit by chance.
        return {**self.__dict__, "_derived": None}

    def column(self, words: Tensor) -> Tensor:
        """The column of the root in which each word is: its cluster's or, if it stands alone, its own; (...) → (...)"""
        cluster = self.cluster_of[words]
        return cluster + torch.where(cluster == self.n_clusters, self.position[words] - self.offsets[-2], 0)

    def members(self, cluster: int) -> Tensor:
        """The words of one cluster, ascending."""
        if not 0 <= cluster < self.n_clusters:
            raise IndexError(f"cluster {cluster} does not exist; there are {self.n_clusters}, from 0")
        self.refresh()
        start, end = self.offsets[cluster : cluster + 2].tolist()
        return self.words[start:end]

    def to_lists(self) -> list[list[int]]:
        """The words of every cluster."""
        self.refresh()
        return [part.tolist() for part in self.words.split(self.offsets.diff().tolist())[:-1]]

    def extra_repr(self) -> str:
        return f"n_words={self.n_words}, n_clusters={self.n_clusters}, capacity={self.capacity}, n_own={self.n_own}"

    @classmethod
    def from_lists(
        cls, clusters: Iterable[Iterable[int]], n_words: int | None = None, own: Iterable[int] = ()
    ) -> "Partition":
        """Builds a partition from the words of each cluster and those that stand alone (`own`); each word from 0 to
        V - 1 must occur once."""
        lists = [[_whole(word, "a word") for word in cluster] for cluster in (*clusters, own)]
        named = [word for cluster in lists for word in cluster]
        n_words = len(named) if n_words is None else n_words
        if len(lists) == 1 or n_words == 0:
            raise ValueError("a partition needs at least one cluster with at least one word; got none")
        cluster_of = torch.full((n_words,), -1, dtype=torch.int64)
        for cluster, members in enumerate(lists):
            place = f"cluster {cluster}" if cluster < len(lists) - 1 else "own"
            for word in members:
                if not 0 <= word < n_words:
                    raise ValueError(f"{place} names word {word!r}; words are 0 to {n_words - 1}")
                if cluster_of[word] >= 0:
                    raise ValueError(f"word {word} is in cluster {int(cluster_of[word])} and again in {place}")
                cluster_of[word] = cluster
        _check_complete(cluster_of)
        return cls(cluster_of, len(lists) - 1, n_own=len(lists[-1]))

    @classmethod
    def from_mapping(cls, clusters: Mapping[int, int], n_words: int | None = None) -> "Partition":
        """Builds a partition from a mapping of words to clusters, with every word from 0 to V - 1 as a key."""
        if not clusters:
            raise ValueError("a partition needs at least one word; the mapping is empty")
        clusters = {_whole(word, "a word"): _whole(c, "a cluster") for word, c in clusters.items()}
        n_words = max(clusters) + 1 if n_words is None else n_words
        cluster_of = torch.full((n_words,), -1, dtype=torch.int64)
        for word, cluster in clusters.items():
            if not 0 <= word < n_words:
                raise ValueError(f"the mapping names word {word}; words are 0 to {n_words - 1}")
            if cluster < 0:
                raise ValueError(f"word {word} is mapped to cluster {cluster}; clusters are counted from 0")
            cluster_of[word] = cluster
        _check_complete(cluster_of)
        return cls(cluster_of, int(cluster_of.max()) + 1)

    # -- files --------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, vocabulary: Sequence[str] | None = None) -> None:
        """Writes `to_text` to a file; warns of a random partition."""
        if self.random:
            warnings.warn(f"{path} gets random clusters: {UNMOVED}", UserWarning, stacklevel=2)
        Path(path).write_text(self.to_text(vocabulary), encoding="utf-8")

    def to_text(self, vocabulary: Sequence[str] | None = None) -> str:
        """The partition as JSON, one cluster per line: word ids, or the words themselves if a vocabulary is given."""
        lists: list[list[Any]] = [*self.to_lists(), self.own.tolist()]
        if vocabulary is not None:
            _check_vocabulary(vocabulary, self.n_words)
            lists = [[vocabulary[word] for word in cluster] for cluster in lists]
        head: dict[str, Any] = {
            "format": FORMAT,
            "n_words": self.n_words,
            "n_clusters": self.n_clusters,
            "capacity": self.capacity,
        }
        if self.random:
            head["random"] = True
        if own := lists.pop():
            head["own"] = own
        rows = ",\n  ".join(json.dumps(cluster, ensure_ascii=False) for cluster in lists)
        return json.dumps(head, ensure_ascii=False)[:-1] + f', "clusters": [\n  {rows}\n]}}\n'

    @classmethod
    def load(cls, path: str | Path, vocabulary: Sequence[str] | None = None) -> "Partition":
        """Reads a file that `save` wrote; if it holds words rather than ids, the vocabulary gives their ids."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} does not exist: give a file that `Partition.save` wrote") from None
        except ValueError as error:
            raise ValueError(f"{path} is not a partition: {error}") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f'{path} is not a partition: expected JSON with "format": "{FORMAT}"')
        if missing := next((key for key in ("clusters", "n_words", "capacity") if key not in content), None):
            raise ValueError(f"{path} is not a partition: it lacks {missing!r}")
        # The words that stand alone, if there are any, are one more list.
        clusters = content["clusters"]
        if isinstance(clusters, list):
            clusters = [*clusters, content.get("own", [])]
        if not (isinstance(clusters, list) and all(isinstance(cluster, list) for cluster in clusters)):
            raise ValueError(f"{path} is not a partition: its clusters must be lists of words")
        if not (isinstance(content["n_words"], int) and isinstance(content["capacity"], int)):
            raise ValueError(f"{path} is not a partition: n_words and capacity must be whole numbers")
        if any(isinstance(word, str) for cluster in clusters for word in cluster):
            if vocabulary is None:
                raise ValueError(f"{path} holds words, not ids: give the vocabulary that has their ids")
            try:
                _check_vocabulary(vocabulary, content["n_words"])
            except ValueError as error:
                raise ValueError(f"{path} is of another vocabulary: {error}") from None
            ids = {word: index for index, word in enumerate(vocabulary)}
            strangers = [word for cluster in clusters for word in cluster if word not in ids]
            if strangers:
                stranger = strangers[0]
                raise ValueError(f"{path} is of another vocabulary: it names {stranger!r}, which the given one lacks")
            clusters = [[ids[word] for word in cluster] for cluster in clusters]
        partition = cls.from_lists(clusters[:-1], content["n_words"], clusters[-1])
        partition.capacity = max(partition.capacity, content["capacity"])
        partition.random = bool(content.get("random", False))
        return partition

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        metadata: Any,
        strict: bool,
        missing: Any,
        extra: Any,
        errors: Any,
    ) -> None:
        given = state_dict.get(prefix + "cluster_of")
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, extra, errors)
        if given is not None and given.shape == self.cluster_of.shape:
            if self.cluster_of is given:  # with `assign=True`, this layer's moves would change the state dict's owner
                self.cluster_of = given.clone()
            if prefix + "digest" not in state_dict and not self.cluster_of.is_meta:
                self.digest.copy_(digest(self.cluster_of))  # clusters given alone; who loads them has checked them
            self._derived = None
            self.refresh()


def digest(cluster_of: Tensor) -> Tensor:
    """A hash of who sits where, (V,) → () int64, the same on every device."""
    place = torch.arange(cluster_of.numel(), device=cluster_of.device)
    # Products of odd numbers wrap around; shifting mixes the upper half into the lower.
    mixed = (cluster_of + 1) * 0x9E3779B97F4A7C1 + (place + 1) * 0x1B03738712FAD5C9
    mixed = (mixed ^ (mixed >> 29)) * 0x3C79AC492BA7B653
    return (mixed ^ (mixed >> 32)).sum()


def why_invalid(
    cluster_of: Tensor, digest_of: Tensor | None, n_clusters: int, capacity: int, n_own: int, n_words: int
) -> str | None:
    """Why cluster numbers (V,) are no partition that a layer has made; None if they are."""
    if cluster_of.shape != (n_words,):
        return f"they have shape {tuple(cluster_of.shape)}; expected one number per class, ({n_words},)"
    low, high = int(cluster_of.min()), int(cluster_of.max())
    never = (
        "Has the memory never been written to? After to_empty(), load a checkpoint or call reset_parameters(). Is it "
        "an average over buffers? Average parameters only (use_buffers=False). To set clusters by hand, use "
        "partition.assign_()"
    )
    if low < 0 or high > n_clusters:
        return f"words are in clusters {low} to {high}; there are {n_clusters}, from 0. {never}"
    if digest_of is not None and int(digest_of) != int(digest(cluster_of)):
        return f"they do not belong together. {never}"
    *sizes, alone = torch.bincount(cluster_of, minlength=n_clusters + 1).tolist()
    if max(sizes) > capacity:
        return (
            f"there is a cluster of {max(sizes)} words; this layer allows {capacity}: raise gamma, or build it with "
            "the checkpoint's partition"
        )
    if alone > n_own:
        return (
            f"{alone} words stand alone; this layer has room for {n_own}: build it with the same counts, with "
            f"own_words={alone}, or with the checkpoint's partition"
        )
    return None


def _writes(tensor: Tensor) -> int:
    # Only its number tells that a tensor was written to in place. Tensors made in inference mode have none.
    return -1 if tensor.is_inference() else tensor._version


def random_partition(
    counts: Tensor, n_clusters: int, capacity: int, budget: int, own: Sequence[int] | Tensor = (), n_own: int = 0
) -> Partition:
    """A random partition that respects capacity and budget: what Algorithm 1 finds for random preferences.

    In descending frequency, words are dealt one each to all clusters that are still open, in random order.
    `counts` (V,); `budget`: a cluster that holds this many occurrences takes no more words; `own`: words that stand
    alone, at most `n_own`.
    """
    order = counts.argsort(descending=True, stable=True)  # (V,)
    cluster_of = torch.full_like(order, -1)
    if len(own):
        cluster_of[own] = n_clusters
        order = order[cluster_of[order] < 0]
    size = torch.zeros(n_clusters, dtype=torch.int64, device=counts.device)
    mass = torch.zeros_like(size)
    dealt = 0
    while dealt < order.numel():
        is_open = ((size < capacity) & (mass < budget)).nonzero().squeeze(1)
        if is_open.numel() == 0:
            raise no_room(order.numel() - dealt, n_clusters, capacity, budget)
        is_open = is_open[torch.randperm(is_open.numel(), device="cpu").to(is_open.device)]
        words = order[dealt : dealt + is_open.numel()]
        clusters = is_open[: words.numel()]
        cluster_of[words] = clusters
        size[clusters] += 1
        mass[clusters] += counts[words]
        dealt += words.numel()
    partition = Partition(cluster_of, n_clusters, capacity, n_own)
    partition.random = True
    return partition


def no_room(left: int, n_clusters: int, capacity: int, budget: int) -> ValueError:
    """The error to raise when no cluster has room for the words that are left."""
    return ValueError(
        f"{left} words find no cluster with room: each of the {n_clusters} clusters holds {capacity} words or has "
        f"reached {budget} occurrences. Raise frequency_budget (None: one that always suffices), gamma or n_clusters"
    )


def _whole(value: Any, what: str) -> int:
    """An integer from any type of integer, such as NumPy's or a tensor with one element."""
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{what} must be a whole number; got {value!r}") from None


def _check_range(cluster_of: Tensor, n_clusters: int, n_own: int) -> None:
    low, high = int(cluster_of.min()), int(cluster_of.max())
    if low < 0 or high >= n_clusters + bool(n_own):
        raise ValueError(f"words are assigned to clusters {low} to {high}; there are {n_clusters}, from 0")
    if (alone := int((cluster_of == n_clusters).sum())) > n_own:
        raise ValueError(f"{alone} words stand alone; there is room for n_own = {n_own}")


def _check_complete(cluster_of: Tensor) -> None:
    missing = (cluster_of < 0).nonzero().squeeze(1)
    if missing.numel():
        first = missing[:5].tolist()
        raise ValueError(f"{missing.numel()} of {cluster_of.numel()} words are in no cluster; the first: {first}")


def _check_vocabulary(vocabulary: Sequence[str], n_words: int) -> None:
    if len(vocabulary) != n_words:
        raise ValueError(f"the vocabulary has {len(vocabulary)} words, the partition {n_words}")
    if len(set(vocabulary)) != n_words:
        raise ValueError("the vocabulary names a word twice; each word must occur once")
