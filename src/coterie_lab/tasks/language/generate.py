"""Writes on from a prompt, a word at a time.

Shapes: L words of the prompt.
"""

from collections.abc import Iterator
from typing import cast

import torch

from coterie_lab.data.folder import UNK
from coterie_lab.heads.registry import Head
from coterie_lab.tasks.language.trained import Trained

TRIES = 100  # draws before the most probable word that is not <unk> is taken instead


@torch.no_grad()
def generate(
    trained: Trained,
    prompt: str,
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
) -> Iterator[str]:
    """Yields `length` words; the same seed gives the same words. <unk> is never written."""
    unknown = trained.id_of[UNK]
    ids = trained.ids(trained.tokens(prompt))
    if ids and all(word == unknown for word in ids):
        raise ValueError(
            f"no word of the prompt {prompt.strip()!r} is in the vocabulary of {len(trained.words):,} words: use words "
            "of the training text (`coterie clusters RUN` shows some)"
        )
    generator = torch.Generator(trained.device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    model, head = trained.model, cast(Head, trained.model.head)
    # Without a prompt the text goes on after an unknown word.
    words = torch.tensor([ids or [unknown]], device=trained.device)  # (1, L)
    state = None
    for _ in range(length):
        hidden, state = model.hidden(words, state)
        last = hidden[:, -1]  # (1, D)
        for _ in range(TRIES if temperature else 0):
            # Drawing again until it is not <unk> is drawing from all the others.
            drawn = head.sample(last, temperature, top_k, top_p, generator)
            if int(drawn) != unknown:
                break
        else:
            best = head.topk(last, 2)[1][0]
            drawn = best[best != unknown][:1]
        words = drawn.reshape(1, 1)
        yield trained.words[int(drawn)]
