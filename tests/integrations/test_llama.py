"""A small Llama trained with the fused losses has the loss curve of plain torch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dualfocal.losses import dual_focal_loss, linear_dual_focal_loss

pytest.importorskip("triton")
transformers = pytest.importorskip("transformers", reason="make test-integrations installs it")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY, STEPS = 31, 30

Loss = Callable[[torch.nn.Module, Tensor, Tensor], Tensor]


def of_logits(impl: str) -> Loss:
    def loss(model: torch.nn.Module, tokens: Tensor, target: Tensor) -> Tensor:
        logits = model(tokens).logits
        return dual_focal_loss(logits.flatten(0, 1), target.flatten(), 2.0, impl=impl)

    return loss


def of_head(model: torch.nn.Module, tokens: Tensor, target: Tensor) -> Tensor:
    hidden = model.model(tokens).last_hidden_state
    return linear_dual_focal_loss(hidden, model.lm_head.weight, target, 2.0)


def curve(loss: Loss) -> Tensor:
    """Losses of a few steps on synthetic tokens: each is followed by its double, some targets are ignored."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        first = torch.randint(VOCABULARY, (4, 1))
        sequence = (first * 2 ** torch.arange(9) % VOCABULARY).to(DEVICE)
        tokens, target = sequence[:, :-1], sequence[:, 1:].clone()
        target[0, :3] = -100
        value = loss(model, tokens, target)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.detach().cpu())
    return torch.stack(losses)


def test_same_loss_curve() -> None:
    plain = curve(of_logits("torch"))
    assert plain[-1] < 0.7 * plain[0]  # it learns
    torch.testing.assert_close(curve(of_logits("triton")), plain, rtol=1e-3, atol=0)
    torch.testing.assert_close(curve(of_head), plain, rtol=1e-3, atol=0)
