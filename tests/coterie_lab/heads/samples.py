"""What the tests of heads share: words, a text of them, heads and batches."""

import torch

from coterie_lab.heads import Material, build

V, D = 50, 16
COUNTS = (1000 / torch.arange(1, V + 1)).long()[torch.randperm(V, generator=torch.Generator().manual_seed(0))]
WORDS = [f"{'un' * (n % 3)}word{n}ß" for n in range(V)]
TEXT = torch.multinomial(COUNTS.double(), 3000, True, generator=torch.Generator().manual_seed(1)).numpy()
MATERIAL = Material(WORDS, TEXT)


def make(name, counts=COUNTS, **options):
    """A head with parameters large enough that nothing is nearly uniform."""
    head = build(name, D, V, counts, MATERIAL, **options)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return head


def problem(*leading):
    hidden = torch.randn(*leading, D)
    target = torch.randint(0, V, leading)
    if target.numel() > 1:
        target.view(-1)[0] = -100
    return hidden, target
