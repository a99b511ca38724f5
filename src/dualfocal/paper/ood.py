"""Images that a model was not trained for: how well it tells them from its own."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dualfocal.data import load_data
from dualfocal.data.paths import Root
from dualfocal.metrics import evaluate, ood_auroc
from dualfocal.runs import Run, RunError
from dualfocal.train.distributed import choose_device
from dualfocal.train.forward import Forward, float32_products, without_search

FOREIGN: dict[str, dict[str, Any]] = {"svhn": {"only_test": True}, "cifar10c": {}}
SEVERITIES = (1, 2, 3, 4, 5)
BATCH = 500
STAGES = ("before", "after")
SCORES = ("entropy", "max_prob")

Progress = Callable[[str, int, int], None]  # what, images that are done, of how many


@dataclass(frozen=True)
class OODScores:
    """Where foreign images are, and where a model looks at them."""

    data_root: Root = None
    device: str | None = None  # None: a GPU if there is one
    progress: Progress | None = None

    def check(self) -> None:
        """Raise a ValueError if some are missing: to know now, and not after the trainings."""
        for name, options in FOREIGN.items():
            load_data(name, self.data_root, **options)

    @torch.no_grad()
    def scores(self, run: Run, name: str) -> dict[str, Any]:
        """How a model tells foreign images from its own, by entropy and by confidence, before and after scaling; kept.

        For CIFAR-10-C, whose images have labels, also its error, ECE and NLL at each severity.

        Raises:
            RunError: what was kept is damaged.
        """
        path = run.path / f"foreign-{name}.json"
        if path.exists():
            return _kept(path)
        temperatures = {"before": 1.0, "after": run.require_result().temperature("temperature_ece")}
        known, _ = run.predictions()
        logits_of = self._model(run)
        foreign = logits_of(load_data(name, self.data_root, **FOREIGN[name]).part("test")[0], name)
        aurocs = {
            stage: {score: ood_auroc(known / t, foreign / t, score=score) for score in SCORES}
            for stage, t in temperatures.items()
        }
        content: dict[str, Any] = {"schema": 1, "foreign": name, "auroc": aurocs}
        if name == "cifar10c":
            content["severities"] = {}
            for severity in SEVERITIES:
                images, target = load_data(name, self.data_root, severity=severity).part("test")
                logits = logits_of(images, f"{name}, severity {severity}")
                content["severities"][severity] = {
                    stage: {key: getattr(evaluate(logits / t, target), key) for key in ("error", "ece", "nll")}
                    for stage, t in temperatures.items()
                }
        run.write_json(path.name, content)
        return content

    def _model(self, run: Run) -> Callable[[Tensor, str], Tensor]:
        """From images to logits, as those of the run's own test part came about: encoder, precision, memory format."""
        device = choose_device(self.device)
        precision = "float64" if run.recipe.precision == "float64" else "float32"
        recipe = dataclasses.replace(run.recipe, precision=precision, step="auto").on(device)
        encoder = load_data(run.recipe.data, self.data_root, **run.recipe.data_options).encoder_of("test").to(device)
        model = run.model().to(device)
        if recipe.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        forward = Forward(model, recipe, device)

        def logits_of(images: Tensor, what: str) -> Tensor:
            found: list[Tensor] = []
            with float32_products(device, "ieee"), without_search():
                for number, part in enumerate(torch.split(images, BATCH)):
                    if self.progress is not None:
                        self.progress(f"{run.path.name}, {what}", number * BATCH, len(images))
                    found.append(forward(encoder(part.to(device))).cpu())
            return torch.cat(found)

        return logits_of


def _kept(path: Path) -> dict[str, Any]:
    try:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for stage, score in product(STAGES, SCORES):
            float(kept["auroc"][stage][score])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: is empty or damaged ({error!r}): remove it, and it is made anew") from error
    return kept
