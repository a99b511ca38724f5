"""The inputs of a report: predictions from files, run folders or arrays, with their evaluations and names."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.metrics import Evaluation
from dualfocal.metrics.arrays import Array, as_numpy
from dualfocal.metrics.draws import Settings
from dualfocal.metrics.evaluation import evaluate_samples
from dualfocal.metrics.groups import GroupEvaluation, evaluate_groups, groups_follow_labels, quantile_groups
from dualfocal.metrics.inputs import INDEPENDENT
from dualfocal.metrics.samples import SampleOptions, Samples, as_samples
from dualfocal.metrics.scan import Scan, scan
from dualfocal.metrics.several import named_errors
from dualfocal.predictions import Reading, find_run_folders, is_finished_run, is_run_folder
from dualfocal.report.names import distinct, input_names, shortened

MOST_INPUTS = 32  # more would be unreadable and too large for a page
MOST_BINS = 1000  # more cannot be drawn

Model = Samples | tuple[Array, Array] | str | os.PathLike[str]  # arrays are (logits, target)


@dataclass(frozen=True, eq=False)
class ReportInput:
    """The predictions of one model.

    Attributes:
        name: Short name on the page.
        path: File or run folder; None for arrays.
        taken: What was read, in words.
        samples: Predictions and targets.
        scanned: Confidence, correctness and NLL of each sample.
        evaluation: Metrics of the samples.
        groups: Metrics of each group of samples, worst first; empty if no groups were requested.
        group_by: Name of the column of the groups.
        groups_follow_labels: Whether each label lies in one group, as if the groups had been made from the labels.
    """

    name: str
    path: Path | None
    taken: str
    samples: Samples
    scanned: Scan
    evaluation: Evaluation
    groups: tuple[GroupEvaluation, ...] = ()
    group_by: str = ""
    groups_follow_labels: bool = False

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Class names from the file, shortened; numbers if there are none."""
        names = self.samples.class_names or ()
        if len(names) != self.samples.num_classes:
            names = tuple(map(str, range(self.samples.num_classes)))
        return distinct(shortened(name) for name in names)

    @property
    def design_effect(self) -> float:
        """Factor by which clusters increase the variance of a mean, at least 1; 1 for independent samples."""
        return design_effect(self.evaluation)

    @property
    def predicted(self) -> Tensor:
        """The predicted class of each row; the first one if several have the largest value."""
        return torch.from_numpy(self.scanned.predicted)


def design_effect(evaluation: Evaluation) -> float:
    """Return the design effect of the clusters of the samples, at least 1; 1 for independent samples."""
    clusters = None if evaluation.inference is None else evaluation.inference.clusters
    return 1.0 if clusters is None else max(1.0, clusters.design_effect)


def find_inputs(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Replace each folder of runs by its finished runs.

    Returns:
        The inputs, and the unfinished runs, which are left out.

    Raises:
        ValueError: a folder has no finished run.
    """
    inputs, unfinished = list[Path](), list[Path]()
    for path in paths:
        if not path.is_dir() or is_run_folder(path):
            inputs.append(path)
            continue
        runs = find_run_folders(path)
        finished = [run for run in runs if is_finished_run(run)]
        if not finished:
            content = f"its {len(runs)} runs are not finished" if runs else "it has no runs"
            raise ValueError(f"{path}: must be a file, a run folder or a folder of finished runs, but {content}")
        inputs += finished
        unfinished += [run for run in runs if not is_finished_run(run)]
    return inputs, unfinished


def load_inputs(
    models: Sequence[Path] | Mapping[str, Model],
    reading: Reading,
    *,
    groups: Array | None = None,
    options: SampleOptions | None = None,
) -> list[ReportInput]:
    """Read and evaluate the inputs of a report.

    Args:
        models: files or run folders, or name -> file, run folder, samples or arrays; see
            :func:`~dualfocal.report.write_report`.
        reading: which arrays to read, and how to score them.
        groups: group of each sample of samples and arrays.
        options: what arrays mean.

    Raises:
        ValueError: there are no or too many inputs, or one cannot be read or scored; the message names it.
    """
    if not 1 <= reading.num_bins <= MOST_BINS:
        raise ValueError(f"num_bins must be from 1 to {MOST_BINS:,}, got {reading.num_bins}")
    if not 1 <= len(models) <= MOST_INPUTS:
        raise ValueError(f"a report needs 1 to {MOST_INPUTS} files or run folders, got {len(models)}")
    if not isinstance(models, Mapping):
        models = dict(zip(input_names(models), _without_repeats(models), strict=True))
    names = distinct(map(shortened, models))
    options = options or {}
    if not all(isinstance(model, tuple | Samples) for model in models.values()):
        columns = (
            ("clusters", options.get("clusters"), "cluster"),
            ("sample_weight", options.get("sample_weight"), "weight"),
            ("groups", groups, "group"),
        )
        for argument, given, option in columns:
            if given is not None:
                raise ValueError(f"{argument} must not be given for files: use reading=Reading({option}=COLUMN)")
    return [
        _arrays_input(name, model, reading, groups, options)
        if isinstance(model, tuple | Samples)
        else _file_input(name, _path_of(name, model), reading)
        for name, model in zip(names, models.values(), strict=True)
    ]


def _without_repeats(paths: Sequence[Path]) -> Sequence[Path]:
    resolved = [path.resolve() for path in paths]
    for path, absolute in zip(paths, resolved, strict=True):
        if resolved.count(absolute) > 1:
            raise ValueError(f"{path} is given more than once")
    return paths


def _path_of(name: str, model: object) -> Path:
    if isinstance(model, str | os.PathLike):
        return Path(model)
    hint = "; an Evaluation does not keep the samples that the page shows" if isinstance(model, Evaluation) else ""
    raise TypeError(f"{name}: must be (logits, target), a file or a run folder, got {type(model).__name__}{hint}")


def _file_input(name: str, path: Path, reading: Reading) -> ReportInput:
    data = reading.load(path)
    reading.check_columns(data, str(path))
    with named_errors(str(path)):
        samples = reading.samples(data)
        source = _scored(name, samples, reading, path, data.taken)
        return source if data.groups is None else _with_groups(source, data.groups, data.group_name, reading)


def _arrays_input(
    name: str,
    model: tuple[Array, Array] | Samples,
    reading: Reading,
    groups: Array | None,
    options: SampleOptions,
) -> ReportInput:
    with named_errors(name):
        if isinstance(model, Samples):
            samples = as_samples(model, None, options)
        else:
            how: SampleOptions = {"ignore_index": reading.ignore_index, "binary": reading.binary}
            if reading.cluster == INDEPENDENT:
                how["clusters"] = INDEPENDENT
            samples = as_samples(*model, {**options, **how})
        samples = samples.cpu()
        kind = "logits" if samples.input == "logits" else "probabilities"
        taken = f"{kind} ({len(samples)} x {samples.num_classes}, {str(samples.dtype)[6:]}) from Python"
        source = _scored(name, samples, reading, None, taken)
        return source if groups is None else _with_groups(source, as_numpy("groups", groups), "group", reading)


def _with_groups(source: ReportInput, column: NDArray[Any], name: str | None, reading: Reading) -> ReportInput:
    """Evaluate the groups of the samples. Numbers that are not whole are cut into quantiles."""
    names = quantile_groups(column) if column.dtype.kind == "f" else column
    groups = evaluate_groups(source.samples, groups=names, **reading.scoring)
    return replace(
        source,
        groups=tuple(groups),
        group_by=shortened(name or "group"),
        groups_follow_labels=groups_follow_labels(source.samples, names),
    )


def _scored(name: str, samples: Samples, reading: Reading, path: Path | None, taken: str) -> ReportInput:
    samples.check_classes("a report")
    samples = samples.by_image()
    scanned = scan(samples, num_bins=reading.num_bins, scores=True, classwise=True)
    settings = Settings(level=reading.level, seed=reading.seed)
    evaluation = evaluate_samples(samples, scanned, reading.num_bins, settings=settings)
    return ReportInput(name, path, taken, samples, scanned, evaluation)
