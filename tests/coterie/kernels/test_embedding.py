"""The gradient of an embedding; without a GPU it runs in Triton's interpreter."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from coterie.kernels import embedding, grouping

pytestmark = pytest.mark.usefixtures("interpreter", "new_memory_is_nan")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("n_tokens, width", [(1, 5), (40, 100), (300, 64), (128, 20), (17, 513)])
@pytest.mark.parametrize("limit", [0, 16384])  # tokens ranked by a sort, by our kernel
def test_the_gradient_of_an_embedding(n_tokens, width, limit, monkeypatch):
    monkeypatch.setattr(grouping, "LIMIT", limit)
    weight = torch.randn(50, width, device=DEVICE, requires_grad=True)
    words = torch.randint(1, 50, (n_tokens,), device=DEVICE)
    words[: n_tokens // 2] = 7  # a frequent word, and word 0 never
    upstream = torch.randn(n_tokens, width, device=DEVICE)
    found = embedding.lookup(weight, words.reshape(1, -1))
    assert torch.equal(found, F.embedding(words.reshape(1, -1), weight))
    (ours,) = torch.autograd.grad(found, weight, upstream.reshape(1, n_tokens, width))
    (theirs,) = torch.autograd.grad(F.embedding(words, weight.double()), weight, upstream.double())
    torch.testing.assert_close(ours, theirs.float(), rtol=1e-5, atol=1e-5)
    assert not ours[0].any()
