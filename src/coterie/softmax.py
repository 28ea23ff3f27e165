"""The layer: a two-level softmax that reorganises its clusters while the model trains.

Shapes: T tokens, D width, V words (classes), C clusters, S most words in a cluster.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from coterie import checks, inference
from coterie.clustering import own_words as own
from coterie.clustering.assignment import BLOCK_SCORES, assign
from coterie.clustering.partition import UNMOVED, Partition, random_partition
from coterie.clustering.prior import Prior, log_frequency, log_mass_alone
from coterie.clustering.schedule import AtIntervals, ByEvidence, Every
from coterie.clustering.statistics import MeanHidden, Smoothing, Statistic, Table, log_cluster_share
from coterie.cpu import in_large_pages
from coterie.embedding import embed
from coterie.follow import follow
from coterie.loss.dispatch import BACKENDS, HAS_TRITON, Backend, Books, choose, in_backward
from coterie.loss.grouping import Grouping
from coterie.loss.levels import ACTIVATIONS, Vectors, cluster_vectors
from coterie.metrics import Measures, Meter, Reorganization, Tally
from coterie.parallel.collective import add_up, compare, group_of, n_processes
from coterie.parallel.sharded import whole, write

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# A layer that has seen so many training batches and no update says so.
UNSTEPPED = 200

Reduction = Literal["mean", "sum", "none"]


class HeadOutput(NamedTuple):
    """What `forward` returns; the same fields as those of `torch.nn.AdaptiveLogSoftmaxWithLoss`."""

    output: Tensor  # log P(target), in the target's shape; 0 where ignored
    loss: Tensor


class SelfOrganizedSoftmax(nn.Module):
    """An exact softmax over V classes in two levels, P(w|h) = P(c|h) · P(w|c, h), at a cost of O(√V).

    Call `step()` after every `optimizer.step()`: from time to time it moves each word to the cluster that predicts it
    best. The most frequent words stand alone, as clusters of one, and never move. Word vectors keep their rows in
    `weight`; only the partition's index tensors change.

    >>> head = SelfOrganizedSoftmax(in_features=16, n_classes=10_000)
    >>> hidden, target = torch.randn(4, 16), torch.tensor([5, 0, 9_999, 17])
    >>> output, loss = head(hidden, target)
    >>> loss.backward()  # then optimizer.step() and head.step()
    >>> head.n_clusters, output.shape, head.log_prob(hidden).shape
    (104, torch.Size([4]), torch.Size([4, 10000]))
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        counts: Tensor | Sequence[int] | None = None,
        *,
        n_clusters: int | None = None,
        gamma: float = 1.5,
        frequency_budget: float | None = None,
        own_words: int | Tensor | Sequence[int] | None = None,
        reorganize_every: Every = "auto",
        reorganize_until: int | None = None,
        statistic: Literal["mean_hidden", "table"] = "mean_hidden",
        smoothing: Smoothing = "mean",
        score: Literal["information", "paper"] = "information",
        projection: bool = True,
        activation: str | None = None,
        bias: bool = True,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        partition: Partition | None = None,
        backend: Backend = "auto",
        process_group: "ProcessGroup | None" = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Builds the layer; `in_features` and `n_classes` are enough.

        in_features: D, the width of the hidden vectors. n_classes: V, the number of classes.
        counts: (V,) how often each class occurs in the training data; None: the layer counts while it trains.
        n_clusters: C; None: √V, from 64 on rounded up to a multiple of 8. gamma: a cluster holds at most γ√V words.
        frequency_budget: a cluster takes no more words once its words make up this share of all occurrences. None: the
            paper's 0.1, or, where 0.1 could leave words without a cluster, the smallest share that cannot.
        own_words: the words that stand alone: ids, or how many of the most frequent; None: a rule on the counts, which
            finds none where no few words make up much of the data. Without counts they are chosen at the first
            reorganisation.
        reorganize_every: updates between reorganisations; "auto": often at first, then less, until little moves; None:
            keep the partition fixed and store no statistic.
        reorganize_until: the last update at which words may move; None: no end.
        statistic: what is stored for each word: "mean_hidden", the mean of h (V × D), or the paper's "table" (V × C).
        smoothing: how the statistic forgets; "mean": it averages about one pass of the data; "paper": the printed rule.
        score: how well a cluster suits a word; "paper": mean log P(c|h); "information": the same minus the log of the
            share of all words that the cluster predicts.
        projection: give each level a linear map of h. activation: what follows the maps: "relu", "tanh" or "gelu".
        label_smoothing: ε at each level, spread over all words' clusters and over the words of the target's cluster.
        partition: the initial one; None: random. backend: the implementation of the loss.
        process_group: the processes that train this layer together; None: all, if there are several. They merge what
            they have learned of the words at every reorganisation, and move them alike.
        """
        super().__init__()
        checks.check_options(
            in_features=in_features, n_classes=n_classes, n_clusters=n_clusters, gamma=gamma,
            reorganize_every=reorganize_every, reorganize_until=reorganize_until, label_smoothing=label_smoothing,
            own_words=own_words, frequency_budget=frequency_budget, ignore_index=ignore_index,
            projection=(projection, (True, False)), bias=(bias, (True, False)),
            statistic=(statistic, ("mean_hidden", "table")), smoothing=(smoothing, ("mean", "paper")),
            score=(score, ("information", "paper")), reduction=(reduction, ("mean", "sum", "none")),
            activation=(activation, (None, *ACTIVATIONS)), backend=(backend, BACKENDS),
        )  # fmt: skip
        if backend == "triton" and not HAS_TRITON:
            raise ValueError('backend="triton" needs the package triton: install it, or use backend="auto"')
        self.in_features, self.n_classes = in_features, n_classes
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing
        self.reorganize_every = reorganize_every
        self.score, self.activation, self.backend = score, activation, backend
        self.counting = counts is None
        number = int(own_words) if isinstance(own_words, Integral) else None
        counted = torch.zeros(n_classes, dtype=torch.int64, device="cpu")
        if counts is not None:
            counted = checks.check_counts(counts, n_classes)

        if partition is not None:
            if partition.n_words != n_classes or n_clusters not in (None, partition.n_clusters):
                raise ValueError(
                    f"the partition has {partition.n_words} words in {partition.n_clusters} clusters; expected "
                    f"{n_classes} words" + ("" if n_clusters is None else f" in {n_clusters} clusters")
                )
            if own_words is not None and (number != 0 or partition.n_own):
                raise ValueError("own_words and partition both say which words stand alone: give one of them")
            n_clusters = partition.n_clusters
        self.n_clusters = n_clusters or checks.default_clusters(n_classes)
        self.capacity = capacity = checks.cluster_capacity(n_classes, self.n_clusters, gamma)
        self.frequency_budget = frequency_budget or checks.default_budget(n_classes, self.n_clusters, capacity)
        self._own_words = own_words if number is None else number
        # Whether words that stand alone are still to be chosen, at the first reorganisation.
        self._choosing = (
            partition is None and self.counting and reorganize_every is not None
            and (own_words is None or number is not None)
        )  # fmt: skip
        if self.counting and number and reorganize_every is None:
            raise ValueError(
                f"own_words={number} asks for the most frequent classes, which a layer with fixed clusters does not "
                "count: give counts, or the classes themselves"
            )
        self._may_choose = self._choosing
        if partition is None:
            chosen: Tensor = counted[:0]
            if not self._choosing and not (self.counting and own_words is None):
                chosen = own.choose(counted, self.n_clusters, self._own_words)
            n_own = own.places(number if self._choosing else chosen.numel(), self.n_clusters)
            budget = self._budget(counted.index_fill(0, chosen, 0))
            partition = random_partition(counted, self.n_clusters, capacity, budget, chosen, n_own)
        else:
            # A copy: reorganising this layer must not move another's words. Its clusters may be larger than γ√V.
            n_own = own.places(partition.n_own, self.n_clusters)
            given = partition
            partition = Partition(given.cluster_of, self.n_clusters, max(capacity, given.capacity), n_own)
            partition.random = given.random
            if given.random and reorganize_every is None:
                warnings.warn(f"the partition is random and stays so: {UNMOVED}", UserWarning, stacklevel=2)
        device = torch.get_default_device() if device is None else device
        # Built on the meta device, the layer needs them again once it has memory: see `reset_parameters`.
        hollow = torch.device(device).type == "meta"
        self._start = (counted, partition.cluster_of.clone()) if hollow else None
        self.partition = partition.to(device)
        self.register_buffer("counts", counted.to(device))

        kwargs: dict[str, Any] = {"device": device, "dtype": dtype}
        self.projection = nn.Parameter(torch.empty(2 * in_features, in_features, **kwargs)) if projection else None
        self.cluster_weight = nn.Parameter(torch.empty(self.n_clusters, in_features, **kwargs))
        self.cluster_bias = nn.Parameter(torch.empty(self.n_clusters, **kwargs)) if bias else None
        self.prior = Prior(self.n_clusters, device) if bias else None
        self.weight = nn.Parameter(in_large_pages(torch.empty(n_classes, in_features, **kwargs)))
        self.bias = nn.Parameter(torch.empty(n_classes, **kwargs)) if bias else None
        # Under the name of its kind, so that a checkpoint says which it holds.
        self._remembers = None if reorganize_every is None else statistic
        if reorganize_every is not None and statistic == "table":
            self.table = Table(n_classes, self.n_clusters, smoothing, device)
        elif reorganize_every is not None:
            self.mean_hidden = MeanHidden(n_classes, in_features, smoothing, device)
        self.meter = Meter(device)
        self.tally = Tally(n_classes, ignore_index, device)
        self.process_group = process_group
        if self.counting and self.statistic is not None:
            self.tally.keep("fresh", n_classes, dtype=torch.int64, device=device)
        self.schedule = (
            ByEvidence(n_classes, reorganize_until)
            if reorganize_every == "auto"
            else AtIntervals(reorganize_every, reorganize_until)
        )
        self.updates = 0
        self._unstepped, self._reminded, self._maybe_skipped = 0, False, False
        self.reset_parameters()

    counts: Tensor  # (V,) occurrences of each class

    @classmethod
    def as_in_paper(
        cls, in_features: int, n_classes: int, counts: Tensor | Sequence[int] | None = None, **options: Any
    ) -> Self:
        """The layer as printed in the paper: ReLU, no biases, the table smoothed by λ = 1/f, the plain score.

        The paper leaves two things open. Here √V is rounded up, and in vocabularies under 900 words, where a budget of
        0.1 could leave words without a cluster, the budget is the smallest that cannot.
        """
        printed = {
            "n_clusters": math.isqrt(max(n_classes, 2) - 1) + 1, "gamma": 1.5, "own_words": 0, "reorganize_every": 1000,
            "statistic": "table", "smoothing": "paper", "score": "paper", "projection": True, "activation": "relu",
            "bias": False,
        }  # fmt: skip
        return cls(in_features, n_classes, counts, **{**printed, **options})

    @property
    def statistic(self) -> Statistic | None:
        """What the layer remembers of each word; None if its clusters are fixed."""
        return None if self._remembers is None else getattr(self, self._remembers)

    @property
    def reorganize_until(self) -> int | None:
        """The last update at which words may move; None: no end."""
        return self.schedule.until

    @reorganize_until.setter
    def reorganize_until(self, update: int | None) -> None:
        self.schedule.until = update

    def reset_parameters(self) -> None:
        """Initialises the parameters anew, biases from the counts, and forgets what was remembered and counted.

        The partition stays. A layer built on the meta device starts with the counts and clusters it was built with.
        """
        if self._start is not None and not self.counts.is_meta:
            counts, cluster_of = self._start
            self.counts.copy_(counts)
            self.partition.assign_(cluster_of.to(self.counts.device), self.partition.random)
            self._start = None
        self.partition.refresh()
        for kept in (self.statistic, self.meter, self.tally):
            if kept is not None:
                kept.clear()
        self.updates = 0
        self.schedule.restart()
        bound = 1 / math.sqrt(self.in_features)
        for parameter in (self.cluster_weight, self.cluster_bias, self.weight):
            if parameter is not None:
                nn.init.uniform_(parameter, -bound, bound)
        if self.bias is not None and self.prior is not None:
            write(self.bias, log_frequency(self.counts))
            self.prior.start(self.counts, self.partition.cluster_of)
            self._start_alone()
        if self.projection is not None:
            if self.activation is None:
                # Two identities: the layer starts as if it had no projections, and trains better for it.
                nn.init.zeros_(self.projection)
            else:
                nn.init.uniform_(self.projection, -bound, bound)  # as nn.Linear does

    def forward(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        """log P(target), in the target's shape, and the loss. `hidden` (..., D), `target` (...).

        On a CPU with gradients enabled, the forward also computes the gradients of the mean loss.
        When activation checkpointing runs it again inside a backward, the batch is not counted a second time.
        """
        vectors = self.vectors()
        checks.check_hidden(hidden, vectors.weight)
        target = checks.check_target(hidden, target)
        shape = target.shape
        training = self.training
        hidden = hidden.reshape(-1, self.in_features)  # (T, D)
        ways = choose(self.backend, hidden)
        if self.meter.sums.device != self.counts.device:
            self._follow(self.counts.device)
        sums, tally = self.meter.row(), self.tally.row()
        if again := in_backward():
            sums, tally = sums.clone(), tally.clone()
        # While training on a GPU, only step() looks: even a query that does not wait costs the host time.
        look = None if training and hidden.is_cuda else self.tally.look
        books = Books(sums, tally, self.ignore_index, look)
        batch = ways.compute(hidden, vectors, target.reshape(-1), self.partition, books)
        if training and self.statistic is not None and not again:
            seen = hidden if self.activation is None else batch.cluster_hidden
            self.remember(seen.detach(), batch.grouping, batch.loss.detach())
        output, loss = batch.output.reshape(shape), batch.loss
        if not self.label_smoothing and self.reduction == "mean":
            return HeadOutput(output, loss)
        per_token = -output
        if self.label_smoothing:
            even = batch.even.reshape(shape)
            per_token = -(1 - self.label_smoothing) * output - self.label_smoothing * even
            loss = per_token.sum() / batch.grouping.starts[-1].clamp(min=1)
        if self.reduction != "mean":
            loss = per_token if self.reduction == "none" else per_token.sum()
        return HeadOutput(output, loss)

    def _follow(self, device: torch.device) -> None:
        """Takes what is kept outside of buffers to the device to which others have moved the rest."""
        for kept in (self.statistic, self.meter, self.tally):
            if kept is not None:
                kept.follow(device)

    def vectors(self) -> Vectors:
        """The layer's parameters and prior, as the functions of `coterie.loss` and `coterie.inference` take them."""
        self.partition.refresh()  # every answer begins here
        prior = None if self.prior is None else self.prior.shift
        learned = (self.projection, self.cluster_weight, self.cluster_bias, self.weight, self.bias)
        projection, cluster_weight, cluster_bias, weight, bias = map(whole, learned)
        return Vectors(projection, self.activation, cluster_weight, cluster_bias, prior, weight, bias)

    def remember(self, seen: Tensor, grouping: Grouping, loss: Tensor) -> None:
        """Adds a batch to the statistic unless its `loss` () is not finite; `seen` (T, D): h, or h_c if activated."""
        if self.statistic is None:
            raise RuntimeError("this layer remembers nothing of its words: it was built with reorganize_every=None")
        sample = self.statistic.sample(seen, lambda: cluster_vectors(self.vectors()))
        group, counts = group_of(self.process_group), self.counts
        if self.counting:
            word = grouping.word
            counted = ((word >= 0) & torch.isfinite(loss)).to(torch.int64)
            # In one of several processes apart from `counts`, which are of all of them.
            (self.counts if group is None else self.tally.fresh).index_add_(0, word.clamp(min=0), counted)
        if group is not None:
            # Each process sees a part of a word's occurrences, and must average over one pass of the data all the same.
            n = n_processes(group)
            counts = (self.counts + n - 1) // n + (self.tally.fresh if self.counting else 0)
        choose(self.backend, seen).remember(self.statistic, sample, grouping, counts, loss)
        if not torch.compiler.is_compiling():
            self._unstepped += 1
            if self._unstepped >= UNSTEPPED:
                self._remind(self._unstepped)

    def follow(
        self, optimizer: Optimizer, on_reorganize: Callable[[Reorganization], object] | None = None
    ) -> RemovableHandle:
        """Calls `step()` after every update of an optimizer, so that nobody has to; `.remove()` the handle to end it.

        Accumulated batches count once, and updates that a GradScaler skips do not count. In a step that
        `coterie.graphs` has captured, every replay counts. `on_reorganize` gets what a reorganisation moved.

        >>> handle = head.follow(torch.optim.AdamW(head.parameters()))
        """
        return follow(optimizer, self.step, on_reorganize)

    def step(self, skipped: Tensor | None = None) -> Reorganization | None:
        """Counts an update; call it after every `optimizer.step()`. When the schedule says so it reorganises the
        clusters and returns what moved.

        `skipped` (): not zero if the optimizer changed nothing, as a GradScaler tells it; read only when it matters.
        """
        self.partition.refresh()
        self.updates += 1
        self._unstepped = 0
        self.tally.look()
        self.tally.stepped()
        if skipped is not None:
            self.tally.skipped += (skipped != 0).to(self.tally.skipped.device)
            self._maybe_skipped = True
        if self.statistic is None or not self.schedule.is_due(self.updates, self._targets):
            return None
        if self._maybe_skipped:
            self._maybe_skipped = False
            if n_skipped := self.tally.take_skipped():
                self.updates -= n_skipped
                if not self.schedule.is_due(self.updates, self._targets):
                    return None
        try:
            return self.reorganize()
        except ValueError as error:
            warnings.warn(f"the clusters stay as they are: {error}", UserWarning, stacklevel=2)
            self.tally.set_targets(0)  # or it would be tried again at every update
            self.schedule.moved(self.updates, 1.0)
            return None

    @torch.no_grad()
    def reorganize(self) -> Reorganization:
        """The E-step, now: assigns every word seen so far to its best cluster with room, frequent words first."""
        if self.statistic is None:
            raise RuntimeError("this layer's partition is fixed: it was built with reorganize_every=None")
        self.partition.refresh()
        before = self.partition.cluster_of.clone()
        group = group_of(self.process_group)
        if group is not None:
            self._merge(group)
        if self._choosing:
            self._choose_own_words()
        placed = self.partition.cluster_of
        with torch.autocast(before.device.type, enabled=False):  # it would round the scores
            cluster_of = assign(
                self.scores(), self.counts, self.n_clusters, self.capacity,
                self._budget(self.counts * (placed < self.n_clusters)),
                settled=torch.where(self.statistic.seen & (placed < self.n_clusters), -1, placed),
            )  # fmt: skip
        moved = cluster_of != before
        mass, clustered = ((self.counts * part).sum() for part in (moved, placed < self.n_clusters))
        sizes = torch.bincount(cluster_of, minlength=self.n_clusters)[: self.n_clusters]
        numbers = torch.stack((moved.sum(), (sizes == 0).sum(), mass, clustered, self.counts.sum())).tolist()
        words_moved, empty, mass_moved, mass_clustered, mass_of_all = numbers
        if self.prior is not None:
            self.prior.move(self.counts, placed, cluster_of)
        self.partition.assign_(cluster_of, self.partition.random and not words_moved)
        if group is not None:
            compare(self.partition.digest[None], group, ("new clusters",))
        self.tally.set_targets(0)
        self.schedule.moved(self.updates, mass_moved / max(mass_clustered, 1))
        return Reorganization(words_moved, words_moved / self.n_classes, mass_moved / max(mass_of_all, 1), empty)

    def _targets(self) -> int:
        """Targets since the last reorganisation, in all processes."""
        group = group_of(self.process_group)
        if group is None:
            return self.tally.targets()
        return int(add_up(self.tally.counts[1, 4].clone(), group))

    def _merge(self, group: "ProcessGroup") -> None:
        """Makes what every process remembers, and has counted, that of all."""
        statistic = self.statistic
        assert statistic is not None
        sizes = self.n_classes, self.n_clusters, self.partition.n_own, statistic.total.shape[1], self.updates
        held = torch.tensor(sizes, device=self.counts.device)
        compare(torch.cat((held, self.partition.digest[None])), group)
        for kept in (statistic.total, statistic.weight):
            add_up(kept, group).div_(n_processes(group))
        if self.counting:
            self.counts += add_up(self.tally.fresh, group)
            self.tally.fresh.zero_()

    def _choose_own_words(self) -> None:
        """Chooses the words that stand alone from what has been counted."""
        assert self.statistic is not None
        if self._own_words is None and not own.enough(self.counts):
            return
        self._choosing = False
        before, chosen = self.partition.cluster_of, own.choose(self.counts, self.n_clusters, self._own_words)
        chosen = chosen[self.counts[chosen].argsort(descending=True, stable=True)][: self.partition.n_own]
        cluster_of = before.index_fill(0, chosen, self.n_clusters)
        if self.prior is not None:
            self.prior.move(self.counts, before, cluster_of)
        self.partition.assign_(cluster_of, self.partition.random)
        self._start_alone()
        self.statistic.forget(chosen)

    @torch.no_grad()
    def _start_alone(self) -> None:
        """Sets the biases of words that stand alone from their counts, to compete with the clusters'."""
        if self.bias is not None:
            cluster_of = self.partition.cluster_of
            alone = log_mass_alone(self.counts, cluster_of, self.n_clusters).to(self.bias.dtype)
            write(self.bias, torch.where(cluster_of == self.n_clusters, alone, whole(self.bias)))

    def scores(self) -> Callable[[Tensor], Tensor]:
        """A function from words (B,) to how well each cluster suits them, (B, C), by the statistic."""
        if self.statistic is None:
            raise RuntimeError("this layer has no statistic to score by: it was built with reorganize_every=None")
        statistic, (vectors, biases) = self.statistic, cluster_vectors(self.vectors())

        def logits(words: Tensor) -> Tensor:
            return statistic.logits(words, vectors, biases)

        if self.score == "paper":
            return logits
        seen = statistic.seen.nonzero().squeeze(1)
        if not seen.numel():
            return logits
        log_share = log_cluster_share(logits, seen, self.counts, BLOCK_SCORES // self.n_clusters)  # (C,)
        return lambda words: logits(words).sub_(log_share)

    def measures(self, reset: bool = True) -> Measures:
        """Perplexity and its two factors since the last reset, of the batches seen in the current mode."""
        return self.meter.read(reset)

    def embed(self, tokens: Tensor) -> Tensor:
        """The input vectors of a model whose weights are tied: each word's vector plus its cluster's, (...) → (..., D).

        A word that stands alone has its own vector only.

        >>> hidden = head.embed(torch.tensor([[3, 17, 5]]))  # (1, 3, 16)
        """
        self.partition.refresh()
        return embed(whole(self.weight), whole(self.cluster_weight), self.partition, tokens)

    # -- inference ----------------------------------------------------------------------------------------------

    def log_prob(self, hidden: Tensor) -> Tensor:
        """log P(w|h) of every class: (..., D) → (..., V)."""
        return inference.log_prob(self.vectors(), self.partition, hidden)

    def cluster_log_prob(self, hidden: Tensor) -> Tensor:
        """log P(c|h) of every cluster, -inf for an empty one: (..., D) → (..., C)."""
        return inference.cluster_log_prob(self.vectors(), self.partition, hidden)

    def root_log_prob(self, hidden: Tensor) -> Tensor:
        """log P of every cluster, then of each word that stands alone (`partition.slots`): (..., D) → (..., C + N).

        Their probabilities sum to one; those of empty columns are zero.
        """
        return inference.root_log_prob(self.vectors(), self.partition, hidden)

    def member_log_prob(self, hidden: Tensor, cluster: int) -> Tensor:
        """log P(w|c, h) of the words of one cluster, in the order of `partition.members`: (..., D) → (..., S)."""
        return inference.member_log_prob(self.vectors(), self.partition, hidden, cluster)

    def predict(self, hidden: Tensor) -> Tensor:
        """The most probable class: (..., D) → (...)."""
        return self.topk(hidden, 1)[1].squeeze(-1)

    def topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable classes, best first: (..., D) → log P and classes, both (..., k).

        The result is that of `log_prob(hidden).topk(k)`, without computing words that cannot be among the k best.

        >>> log_p, words = head.topk(torch.randn(4, 16), k=3)  # (4, 3) both
        """
        return inference.topk(self.vectors(), self.partition, hidden, k)

    def extend(self, hidden: Tensor, score: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """A step of a beam search: the k best ways to extend one of B hypotheses by one word, best first.

        `hidden` (..., B, D); `score` (..., B): log P of each hypothesis, -inf for an unused place.
        Returns log P of hypothesis and word together, the index of the hypothesis, and the word, each (..., k).

        >>> log_p, hypothesis, word = head.extend(torch.randn(5, 16), torch.zeros(5), k=5)  # (5,) each
        >>> tokens = torch.cat((tokens[hypothesis], word[:, None]), 1)  # (5, n) → (5, n + 1)
        """
        return inference.extend(self.vectors(), self.partition, hidden, score, k)

    def sample(
        self,
        hidden: Tensor,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draws one class per hidden vector, (..., D) → (...): temperature first, then top-k, then top-p.

        >>> words = head.sample(torch.randn(4, 16), temperature=0.8, top_p=0.9)  # (4,)
        """
        return inference.sample(self.vectors(), self.partition, hidden, temperature, top_k, top_p, generator)

    def _budget(self, counts: Tensor) -> int:
        """The frequency budget in occurrences, given the counts of words in clusters, 0 for others."""
        # No cluster can hold twice all occurrences, so any larger budget means the same.
        return max(1, math.ceil(min(self.frequency_budget, 2.0) * int(counts.sum())))

    def _remind(self, forwards: int) -> None:
        """Warns once if the layer has seen many batches and no update."""
        if forwards < UNSTEPPED or self._reminded or self.reorganize_every is None or self.updates:
            return
        self._reminded = True
        warnings.warn(
            f"{forwards} training batches and no update: the clusters stay random. Call head.follow(optimizer) once, "
            "or head.step() after every optimizer.step(), or build the layer with reorganize_every=None to keep its "
            "partition",
            UserWarning,
            stacklevel=3,
        )

    def train(self, mode: bool = True) -> Self:
        if not mode and not self._reminded and not self.updates:
            self._remind(self.tally.unstepped())  # a compiled or captured step has only the device count
        return super().train(mode)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, n_classes={self.n_classes}, n_clusters={self.n_clusters}, "
            f"reorganize_every={self.reorganize_every}"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "process_group": None}  # a process group can be neither copied nor stored

    # -- checkpoints --------------------------------------------------------------------------------------------

    def get_extra_state(self) -> Tensor:
        """What a checkpoint holds beside parameters and buffers: the updates, and where the schedule is."""
        held = (
            self.updates - self.tally.n_skipped(),
            self.tally.targets(),
            self._choosing,
            self.partition.random,
            *self.schedule.state,
        )
        return torch.tensor(held, dtype=torch.int64)

    def set_extra_state(self, state: Tensor) -> None:
        """Takes back what `get_extra_state` gave; of a schedule of another kind only the updates."""
        self.updates, targets, choosing, random, *schedule = state.tolist()
        if self.tally.counts.is_meta:
            self._follow(state.device)
        self.tally.set_targets(targets)
        self.tally.skipped.zero_()
        if self.counting and self.statistic is not None:
            self.tally.fresh.zero_()
        self.partition.random = bool(random)
        self._choosing = self._may_choose and bool(choosing)
        if len(schedule) == len(self.schedule.state):
            self.schedule.state = tuple(schedule)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, strict: bool, missing: Any, *others: Any
    ) -> None:
        # Checked first, so that a refused checkpoint leaves the layer unchanged.
        shape = (self.n_classes, self.n_clusters, self.in_features)
        kind = None if self.statistic is None else self.statistic.NAME
        if reason := checks.why_unfit(state_dict, prefix, shape, self.partition, kind):
            raise RuntimeError(reason)
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *others)
        if prefix + "partition.cluster_of" in state_dict:
            self._start = None
