"""Out-of-distribution (OOD) detection: how well a model separates SVHN and CIFAR-10-C from its own test images."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dualfocal.metrics import evaluate, ood_auroc
from dualfocal_lab.data import load_data
from dualfocal_lab.data.paths import Root
from dualfocal_lab.runs import Run, RunError
from dualfocal_lab.runs.layout import read_json
from dualfocal_lab.train.distributed import choose_device
from dualfocal_lab.train.forward import Forward, float32_products, without_search

OOD_DATA: dict[str, dict[str, Any]] = {"svhn": {"only_test": True}, "cifar10c": {}}
SEVERITIES = (1, 2, 3, 4, 5)
BATCH = 500
STAGES = ("before", "after")
SCORES = ("entropy", "max_prob")

ScoringProgress = Callable[[str, int, int], None]  # what is scored, finished images, all images


@dataclass(frozen=True)
class OODScores:
    """Compute OOD scores of runs.

    Args:
        data_root: folder of the data.
        device: where the models run (None: a GPU if there is one).
        progress: called with the name of what is scored, and the numbers of finished and of all images.
    """

    data_root: Root = None
    device: str | None = None
    progress: ScoringProgress | None = None

    def check(self) -> None:
        """Raise a ValueError if OOD data are missing; call this before the trainings."""
        for name, options in OOD_DATA.items():
            load_data(name, self.data_root, **options)

    @torch.no_grad()
    def scores(self, run: Run, name: str) -> dict[str, Any]:
        """Return the AUROC of OOD detection by entropy and by confidence, before and after temperature scaling.

        For CIFAR-10-C, whose images have labels, also the error, ECE and NLL at each severity. The scores are saved in
        the run folder, and read from there the next time.

        Args:
            run: a finished run.
            name: ``"svhn"`` or ``"cifar10c"``.

        Raises:
            RunError: the saved scores are damaged.
        """
        path = run.path / f"foreign-{name}.json"
        if path.exists():
            return _read_scores(path)
        temperatures = {"before": 1.0, "after": run.require_result().temperature("temperature_ece")}
        known_logits, _ = run.predictions()
        logits_of = self._model(run)
        ood_logits = logits_of(load_data(name, self.data_root, **OOD_DATA[name]).part("test")[0], name)
        aurocs = {
            stage: {score: ood_auroc(known_logits / t, ood_logits / t, score=score) for score in SCORES}
            for stage, t in temperatures.items()
        }
        content: dict[str, Any] = {"schema": 1, "foreign": name, "auroc": aurocs}
        if name == "cifar10c":
            content["severities"] = {}
            for severity in SEVERITIES:
                images, target = load_data(name, self.data_root, severity=severity).part("test")
                logits = logits_of(images, f"{name}, severity {severity}")
                content["severities"][severity] = {
                    stage: {
                        key: getattr(evaluate(logits / t, target, input="logits"), key)
                        for key in ("error", "ece", "nll")
                    }
                    for stage, t in temperatures.items()
                }
        run.write_json(path.name, content)
        return content

    def _model(self, run: Run) -> Callable[[Tensor, str], Tensor]:
        """Return a function from images to logits that processes them like the test split of the run."""
        device = choose_device(self.device)
        precision = "float64" if run.recipe.precision == "float64" else "float32"
        recipe = dataclasses.replace(run.recipe, precision=precision, step="auto").on(device)
        encoder = load_data(run.recipe.data, self.data_root, **run.recipe.data_options).encoder_of("test").to(device)
        model = run.model().to(device)
        if recipe.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        forward = Forward(model, recipe, device)

        def logits_of(images: Tensor, what: str) -> Tensor:
            logits: list[Tensor] = []
            with float32_products(device, "ieee"), without_search():
                for number, part in enumerate(torch.split(images, BATCH)):
                    if self.progress is not None:
                        self.progress(f"{run.path.name}, {what}", number * BATCH, len(images))
                    logits.append(forward(encoder(part.to(device))).cpu())
            return torch.cat(logits)

        return logits_of


def _read_scores(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
        for stage, score in product(STAGES, SCORES):
            float(content["auroc"][stage][score])
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: is empty or damaged ({error!r}); delete it to compute it again") from error
    return content
