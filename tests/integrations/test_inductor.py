"""torch.compile with its default backend, which calls a C++ compiler; tests/losses trace the same graphs without it."""

import torch
from test_transforms import both, problem

from dualfocal.losses import dual_focal_loss


def test_the_loss_compiles_with_dynamic_shapes() -> None:
    compiled = torch.compile(dual_focal_loss, fullgraph=True, dynamic=True)
    for n, c in ((12, 6), (33, 17)):
        logits, target = problem(n, c)
        value, gradient = both(compiled(logits, target), logits)
        true_value, true_gradient = both(dual_focal_loss(logits, target), logits)
        torch.testing.assert_close(value, true_value)
        torch.testing.assert_close(gradient, true_gradient)
    torch.compiler.reset()
