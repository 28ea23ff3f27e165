"""The kernels behind the experiments' own layers; without a GPU they run in Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")

from coterie_lab.kernels import adam
from coterie_lab.models.embedding import Embedding
from coterie_lab.models.lstm import LSTM

pytestmark = pytest.mark.usefixtures("interpreter")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_the_embedding_layer_is_torchs():
    layer = Embedding(20, 8).to(DEVICE)
    words = torch.randint(0, 20, (3, 4), device=DEVICE)
    layer(words).sum().backward()
    assert torch.equal(layer.weight.grad[:, 0], torch.bincount(words.flatten(), minlength=20).float())


@pytest.mark.parametrize("decay, decoupled", [(0.0, False), (0.3, False), (0.3, True)])
@pytest.mark.parametrize("scaled", [False, True])
def test_adam_over_a_large_parameter(decay, decoupled, scaled):
    ours = torch.randn(50, 100, device=DEVICE)  # not a multiple of the kernel's block
    theirs = ours.double().requires_grad_()
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    reference = kind([theirs], lr=0.02, weight_decay=decay)
    mean, square, step = torch.zeros_like(ours), torch.zeros_like(ours), torch.zeros((), device=DEVICE)
    for factor in (3.0, 1.0, 5.0):
        gradient = torch.randn_like(ours)
        theirs.grad = gradient.double() / (factor if scaled else 1.0)
        reference.step()
        step += 1
        rate, scale = torch.tensor(0.02, device=DEVICE), torch.tensor(factor, device=DEVICE) if scaled else None
        adam.update(ours, gradient, mean, square, rate, step, scale, (0.9, 0.999), 1e-8, decay, decoupled)
    torch.testing.assert_close(ours, theirs.detach().float(), rtol=1e-5, atol=1e-6)
    assert torch.isfinite(ours).all()


@pytest.mark.parametrize("layers", [1, 2])
def test_the_lstm_is_torchs_and_close_to_it_under_autocast(layers):
    lstm = LSTM(6, 8, layers).to(DEVICE)
    plain = torch.nn.LSTM(6, 8, layers, batch_first=True).to(DEVICE)
    plain.load_state_dict(lstm.state_dict())
    x = torch.randn(3, 5, 6, device=DEVICE)
    expected, (hidden, cell) = plain(x)
    output, state = lstm(x)
    torch.testing.assert_close(output, expected)
    output.sum().backward()
    exact = [parameter.grad.clone() for parameter in lstm.parameters()]
    lstm.zero_grad()
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        output, state = lstm(x)
    output.sum().backward()
    assert output.dtype == (torch.bfloat16 if DEVICE == "cuda" else torch.float32)
    assert {part.dtype for part in state} == {torch.float32}
    torch.testing.assert_close((output.float(), *state), (expected, hidden, cell), rtol=0.02, atol=0.02)
    torch.testing.assert_close([p.grad for p in lstm.parameters()], exact, rtol=0.05, atol=0.1)
