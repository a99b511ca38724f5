"""What works with torch, numpy and scipy alone. `make bare` runs this after `pip install .` in an empty environment.

Run by itself, it checks whichever packages are installed; ``tests/test_startup.py`` runs it with all others blocked.
"""

import sys
import tempfile
from pathlib import Path

import torch

import dualfocal
from dualfocal.calibrators import save_calibrator

generator = torch.Generator().manual_seed(0)
logits = 3 * torch.randn(2000, 5, generator=generator)
target = torch.multinomial((logits / 2).softmax(1), 1, generator=generator)[:, 0]

# A loss, with its gradient.
weights = torch.zeros(5, 5, requires_grad=True)
dualfocal.DualFocalLoss(gamma=5)(logits @ weights + logits, target).backward()
assert weights.grad is not None
assert weights.grad.isfinite().all()
assert weights.grad.abs().sum() > 0

# An evaluation with its tests: the logits are twice too large, so the model is over-confident.
evaluation = dualfocal.evaluate(logits, target, inference=True)
assert "Over-confident" in str(evaluation)

# Which calibrator helps, and one that is fitted, saved and loaded.
assert "temperature" in str(dualfocal.compare_calibrators(logits, target, ["temperature", "vector"]))
calibrator = dualfocal.TemperatureScaling().fit(logits, target)
assert 1.8 < calibrator.temperature < 2.2
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "temperature.npz")
    save_calibrator(calibrator, path)
    assert torch.equal(dualfocal.load_calibrator(path)(logits), calibrator(logits))

# Two models on the same samples.
assert dualfocal.compare(logits, calibrator(logits), target).differences["nll"].significant

print("dualfocal", dualfocal.__version__, "works with torch, numpy and scipy;", len(sys.modules), "modules")
