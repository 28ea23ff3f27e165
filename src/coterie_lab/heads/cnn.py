"""CNN-softmax: word vectors computed from spelling, so that unseen words have one, too (Jozefowicz et al. 2016).

Words with similar spelling may differ in meaning. So each word also has a few parameters of its own, which a linear map
turns into a correction of its vector.

It is trained by importance sampling, so that a step encodes only the targets and the samples. Outside of training, the
vectors of all words are computed once and cached until the head is trained again.

Shapes: T tokens, D width, V words, K draws, N words to spell, M bytes of a word, E width of a byte, G features,
R numbers of a word's own.
"""

from collections.abc import Sequence
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.checks import check_target, check_whole
from coterie.softmax import HeadOutput
from coterie_lab.heads.dense import DenseAnswers, cross_entropy, flat, mean_loss, precise
from coterie_lab.heads.proposals import Kind, Proposal
from coterie_lab.heads.registry import register
from coterie_lab.heads.sampled import SAMPLES, check_samples, sampled_log_prob

PADDING, BEGIN, END = 0, 257, 258  # bytes are 1 to 256
LONGEST = 24  # M: more bytes than that are not read
BLOCK = 8192  # words to encode at a time, outside of training
ALIGNED = 8  # 16-bit numbers in 16 bytes, the alignment of rows that tensor cores need


def spelled(words: Sequence[str]) -> Tensor:
    """The UTF-8 bytes of words, between a start and an end symbol: (N, M)."""
    codes = torch.zeros(len(words), LONGEST, dtype=torch.int64)
    for row, word in zip(codes, words, strict=True):
        letters = [BEGIN, *(byte + 1 for byte in word.encode("utf-8", "surrogatepass")[: LONGEST - 2]), END]
        row[: len(letters)] = torch.tensor(letters)
    return codes


class Speller(nn.Module):
    """Bytes to vectors: convolutions of several widths, their maximum over the word, a highway layer, a linear map."""

    def __init__(
        self, out_features: int, byte_width: int, widths: Sequence[int], features: int, correction: int
    ) -> None:
        """A filter of width k has `features` · k outputs; `correction`: R."""
        super().__init__()
        self.widths = tuple(widths)
        self.bytes = nn.Embedding(END + 1, byte_width, padding_idx=PADDING)
        self.filters = nn.ModuleList(nn.Conv1d(byte_width, features * width, width) for width in widths)
        total = features * sum(widths)  # G
        self.highway = nn.Linear(total, 2 * total)
        with torch.no_grad():
            self.highway.bias[total:] = -2.0  # at first the highway layer is nearly the identity
        self.out = nn.Linear(total, out_features)
        # It belongs to the speller: all words share it, too, so it needs the same small learning rate.
        self.correct = nn.Linear(correction, out_features, bias=False) if correction else None

    def forward(self, codes: Tensor, own: Tensor | None = None) -> Tensor:
        """Spellings (N, M) and the words' own numbers (N, R) → (N, out_features)."""
        # The G features are padded with zeros to an aligned width.
        total, wide, made = self.out.in_features, _aligned(self.out.in_features), _aligned(self.out.out_features)
        found = self._convolved(codes, wide).max(1).values.tanh()  # (N, wide)
        ways, biases = self.highway.weight.unflatten(0, (2, total)), self.highway.bias.unflatten(0, (2, total))
        ways, biases = _padded(ways, 2, wide, wide), _padded(biases, 2, wide)
        new, gate = F.linear(found, ways.flatten(0, 1), biases.flatten()).chunk(2, -1)
        gate = gate.sigmoid()
        mixed = gate * new.relu() + (1 - gate) * found
        vectors = F.linear(mixed, _padded(self.out.weight, made, wide), _padded(self.out.bias, made))  # (N, made)
        if self.correct is not None and own is not None:
            vectors = vectors + F.linear(own, _padded(self.correct.weight, made, self.correct.in_features))
        return vectors[:, : self.out.out_features]

    def _convolved(self, codes: Tensor, wide: int) -> Tensor:
        """Every filter from every byte on, in one product; behind a word's end all is zero: (N, M) → (N, M, wide), the
        G features first."""
        # Separate convolutions with so few channels took half of a training step on a GPU.
        filters = cast("list[nn.Conv1d]", list(self.filters))
        widest = max(self.widths)
        kernels = [F.pad(kind.weight, (0, widest - kind.weight.shape[2])) for kind in filters]  # each (·, E, widest)
        letters = self.bytes(F.pad(codes, (0, widest - 1), value=PADDING))  # (N, M + widest - 1, E)
        windows = letters.unfold(1, widest, 1).flatten(2)  # (N, M, E · widest)
        kernel, bias = torch.cat(kernels).flatten(1), torch.cat([cast(Tensor, kind.bias) for kind in filters])
        return F.linear(windows, _padded(kernel, wide, kernel.shape[1]), _padded(bias, wide))


def _aligned(width: int) -> int:
    return -(-width // ALIGNED) * ALIGNED


def _padded(weight: Tensor, *sizes: int) -> Tensor:
    """Pads with zeros to these sizes."""
    missing = [size - there for size, there in zip(sizes, weight.shape, strict=True)]
    return F.pad(weight, [amount for more in reversed(missing) for amount in (0, more)])


@register("cnn")
class SpelledSoftmax(DenseAnswers, nn.Module):
    """A softmax over words whose vectors and biases are computed from their spelling."""

    codes: Tensor  # (V, M)

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        counts: Tensor | Sequence[int],
        vocabulary: Sequence[str] | None = None,
        byte_width: int = 16,
        widths: Sequence[int] = (1, 2, 3, 4, 5, 6),
        features: int = 25,
        correction: int = 128,
        proposal: Kind = "power",
        samples: int = SAMPLES,
        text: NDArray[Any] | None = None,
        ignore_index: int = -100,
    ) -> None:
        """`counts` (V,); `vocabulary`: how the V words are spelled. `samples`, `proposal`, `text`: of importance
        sampling. A filter of width k has `features` · k outputs. `correction`: R, 0 for none."""
        super().__init__()
        if vocabulary is None or len(vocabulary) != n_classes:
            got = "none" if vocabulary is None else f"{len(vocabulary)} of them"
            raise ValueError(f"word vectors from spelling need vocabulary=, the {n_classes} words; got {got}")
        if not widths or min(widths) < 1 or max(widths) > LONGEST or byte_width < 1 or features < 1:
            raise ValueError(
                f"widths must be from 1 to {LONGEST}, byte_width and features at least 1; got {list(widths)}, "
                f"{byte_width} and {features}"
            )
        check_whole("ignore_index", ignore_index)
        check_whole("correction", correction)
        if correction < 0:
            raise ValueError(f"correction must be 0 or more numbers for each word; got {correction}")
        self.in_features, self.n_classes, self.ignore_index = in_features, n_classes, ignore_index
        self.samples = check_samples(samples, n_classes)
        self.proposal = Proposal(proposal, counts, n_classes, text)
        self.register_buffer("codes", spelled(vocabulary), persistent=False)
        self.projection = Speller(in_features + 1, byte_width, widths, features, correction)
        self.correction = nn.Parameter(torch.zeros(n_classes, correction)) if correction else None
        self._number = {word: number for number, word in enumerate(vocabulary)}
        self._kept: tuple[object, Tensor] | None = None

    def forward(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        """log P(target), in training an estimate, and the mean loss. `hidden` (..., D), `target` (...)."""
        if not self.training:
            return cross_entropy(self._logits(hidden), check_target(hidden, target), self.ignore_index)
        rows, words, used = flat(hidden, target, self.ignore_index)
        drawn = self.proposal(words, used, self.samples)
        vectors = self._vectors(torch.cat((words, drawn.words)))  # (T + K, D + 1)
        of_target, of_drawn = vectors[: words.numel()], vectors[words.numel() :]
        target_logit = (precise(rows) * of_target[:, :-1]).sum(-1) + of_target[:, -1]
        logits = precise(F.linear(rows, of_drawn[:, :-1], of_drawn[:, -1]))
        output = sampled_log_prob(target_logit, logits, drawn.log_q, words[:, None] == drawn.words)
        return mean_loss(torch.where(used, output, 0.0), target, self.ignore_index)

    def log_prob(self, hidden: Tensor) -> Tensor:
        """(..., D) → (..., V)."""
        return precise(self._logits(hidden)).log_softmax(-1)

    def vectors(self, words: Sequence[str]) -> Tensor:
        """The vectors of any words, known or not, each followed by its bias: (N, D + 1)."""
        codes, own = spelled(words).to(self.codes.device), None
        if self.correction is not None:
            numbers = torch.tensor([self._number.get(word, -1) for word in words], device=codes.device)  # (N,)
            own = torch.where(numbers[:, None] >= 0, self.correction[numbers], 0.0)  # an unseen word has no correction
        made: Tensor = self.projection(codes, own)
        return made

    def train(self, mode: bool = True) -> Self:
        self._kept = None
        return super().train(mode)

    def _logits(self, hidden: Tensor) -> Tensor:
        every = self._every_vector()
        return F.linear(hidden, every[:, :-1].to(hidden.dtype), every[:, -1].to(hidden.dtype))

    def _every_vector(self) -> Tensor:
        """The vectors of all words, (V, D + 1), cached outside of training."""
        if self.training or torch.is_grad_enabled():
            return self._all_vectors()
        # Writing to a parameter, loading it or moving it changes one of these.
        weights = [(weight.data_ptr(), weight._version, weight.dtype) for weight in self.parameters()]
        state = (weights, torch.is_autocast_enabled(self.codes.device.type))
        if self._kept is None or self._kept[0] != state:
            self._kept = (state, self._all_vectors())
        return self._kept[1]

    def _all_vectors(self) -> Tensor:
        """(V, D + 1)."""
        blocks = torch.arange(self.n_classes, device=self.codes.device).split(BLOCK)
        return torch.cat([self._vectors(words) for words in blocks])

    def _vectors(self, words: Tensor) -> Tensor:
        """The vectors of words by id, (N,) → (N, D + 1)."""
        own = None if self.correction is None else F.embedding(words, self.correction)
        made: Tensor = self.projection(F.embedding(words, self.codes), own)
        return made
