"""A generated language with a known truth: a small probabilistic grammar over syntactic-semantic classes.

A class is a part of speech on a topic ("noun about the sea"). Parts of speech follow each other as in short sentences,
topics mostly stay, and inside a class words follow Zipf's law. Because every word has one class, the best possible
perplexity is known exactly. Words are invented; their ending tells the part of speech, their stem the topic, so that
a person can read a cluster.

Shapes: N words of text, V words, K classes.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

PARTS = {"noun": "o", "verb": "at", "adjective": "il", "adverb": "enk", "name": "us"}
TOPICS = ("sea", "war", "food", "law", "song", "field", "star", "trade")
# Which part of speech follows which, and how often. No two parts follow the same ones: what cannot be told apart by
# its contexts cannot be learned from them.
FOLLOWS = {
    "noun": {"verb": 0.7, "adverb": 0.3},
    "verb": {"adjective": 0.5, "name": 0.3, "adverb": 0.2},
    "adjective": {"noun": 0.85, "adjective": 0.15},
    "adverb": {"verb": 0.5, "name": 0.5},
    "name": {"verb": 0.5, "adjective": 0.3, "noun": 0.2},
}
TOPIC_STAYS = 0.8
ONSETS = dict(zip(TOPICS, ("mlw", "kgr", "pbm", "tdv", "slf", "hrn", "zsj", "cdk"), strict=True))


@dataclass(frozen=True)
class Grammar:
    """The classes of a language, how they follow each other, and its words."""

    words: list[str]  # V
    class_of: Tensor  # (V,)
    class_names: list[str]  # K
    transition: Tensor  # (K, K) P(next class | class)
    word_given_class: Tensor  # (V,) P(word | its class)

    @property
    def perplexity(self) -> float:
        """The best any model can reach: of the language itself."""
        stationary = torch.full((len(self.class_names),), 1 / len(self.class_names), dtype=torch.float64)
        for _ in range(200):
            stationary = stationary @ self.transition
        of_class = torch.special.entr(self.transition).sum(1)  # (K,) entropy of the next class
        of_word = torch.zeros_like(stationary).index_add_(0, self.class_of, torch.special.entr(self.word_given_class))
        return math.exp(float(stationary @ of_class + (stationary @ self.transition) @ of_word))

    def write(self, length: int, seed: int) -> Tensor:
        """A text of N words, (N,)."""
        generator = torch.Generator().manual_seed(seed)
        draws = torch.rand(2, length, generator=generator, dtype=torch.float64)
        steps = self.transition.cumsum(1)
        state, states = 0, []
        for draw in draws[0].tolist():
            state = min(int(torch.searchsorted(steps[state], draw)), len(self.class_names) - 1)
            states.append(state)
        classes = torch.tensor(states)
        # Words stand class by class: a word is found by its class's start and a draw from its Zipf law.
        text = torch.empty(length, dtype=torch.int64)
        for k in range(len(self.class_names)):
            members = (self.class_of == k).nonzero().squeeze(1)
            here = (classes == k).nonzero().squeeze(1)
            law = self.word_given_class[members].cumsum(0)
            text[here] = members[torch.searchsorted(law, draws[1, here]).clamp(max=members.numel() - 1)]
        return text


def default_grammar(words_per_class: int = 75, seed: int = 0) -> Grammar:
    """Five parts of speech on eight topics, `words_per_class` words each."""
    generator = torch.Generator().manual_seed(seed)
    classes = [(part, topic) for part in PARTS for topic in TOPICS]
    topic_moves = (1 - TOPIC_STAYS) / (len(TOPICS) - 1)
    transition = torch.tensor(
        [
            [FOLLOWS[part].get(then, 0.0) * (TOPIC_STAYS if topic == on else topic_moves) for then, on in classes]
            for part, topic in classes
        ],
        dtype=torch.float64,
    )
    zipf = 1 / torch.arange(1, words_per_class + 1, dtype=torch.float64)
    known: set[str] = set()
    words = [_new_word(topic, PARTS[part], known, generator) for part, topic in classes for _ in range(words_per_class)]
    return Grammar(
        words=words,
        class_of=torch.arange(len(classes)).repeat_interleave(words_per_class),
        class_names=[f"{part} · {topic}" for part, topic in classes],
        transition=transition,
        word_given_class=(zipf / zipf.sum()).repeat(len(classes)),
    )


def _new_word(topic: str, ending: str, known: set[str], generator: torch.Generator) -> str:
    """A word that no one has used: syllables that begin with the topic's letters, and an ending."""
    letters = ONSETS[topic]
    while True:
        picks = torch.randint(0, 15, (6,), generator=generator).tolist()
        n_syllables = 2 + picks[5] % 2
        stem = "".join(letters[pick % 3] + "aeiou"[pick // 3] for pick in picks[:n_syllables])
        if (word := stem + ending) not in known:
            known.add(word)
            return word
