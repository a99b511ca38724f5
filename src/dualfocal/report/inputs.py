"""The inputs of a report: predictions from files, run folders or arrays, with their evaluations and names."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.metrics import Evaluation
from dualfocal.metrics.arrays import Array, as_tensor
from dualfocal.metrics.draws import Settings
from dualfocal.metrics.evaluation import evaluate_rows
from dualfocal.metrics.groups import GroupEvaluation, evaluate_groups, groups_follow_labels, quantile_groups
from dualfocal.metrics.rows import INDEPENDENT, Rows, as_rows, image_clusters
from dualfocal.metrics.scan import Scan, scan
from dualfocal.predictions import Predictions, Reading, find_run_folders, is_finished_run, is_run_folder
from dualfocal.report.names import distinct, input_names, shortened

MOST_INPUTS = 32  # more would be unreadable and too large for a page
MOST_BINS = 1000  # more cannot be drawn

Model = tuple[Array, Array] | str | os.PathLike[str]  # (logits, target), a file or a run folder


@dataclass(frozen=True, eq=False)
class ReportInput:
    """The predictions of one model.

    Attributes:
        name: Short name on the page.
        path: File or run folder; None for arrays.
        data: Predictions as read.
        rows: Predictions as checked rows.
        scanned: Confidence, correctness and NLL of each row.
        evaluation: Metrics of the rows.
        part: Split of the run, such as ``"test"``.
        groups: Metrics of each group of samples, worst first; empty if no groups were requested.
        group_by: Name of the column of the groups.
        groups_follow_labels: Whether each label lies in one group, as if the groups had been made from the labels.
    """

    name: str
    path: Path | None
    data: Predictions
    rows: Rows
    scanned: Scan
    evaluation: Evaluation
    part: str
    groups: tuple[GroupEvaluation, ...] = ()
    group_by: str = ""
    groups_follow_labels: bool = False

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Class names from the file, shortened; numbers if there are none."""
        names = self.data.names_of_classes or ()
        if len(names) != self.rows.num_classes:
            names = tuple(map(str, range(self.rows.num_classes)))
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
    input: str | None = None,
    class_names: Sequence[str] | None = None,
    clusters: Array | None = None,
    sample_weight: Array | None = None,
    groups: Array | None = None,
) -> list[ReportInput]:
    """Read and evaluate the inputs of a report.

    Args:
        models: files or run folders, or name -> file, run folder or arrays; see :func:`~dualfocal.report.write_report`.
        reading: which arrays to read, and how to score them.
        input: whether arrays hold ``"logits"`` or ``"probs"``.
        class_names: names of the classes of arrays.
        clusters: cluster of each sample of the arrays.
        sample_weight: weight of each sample of the arrays.
        groups: group of each sample of the arrays.

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
    if not all(isinstance(model, tuple) for model in models.values()):
        columns = (
            ("clusters", clusters, "cluster"),
            ("sample_weight", sample_weight, "weight"),
            ("groups", groups, "group"),
        )
        for argument, given, option in columns:
            if given is not None:
                raise ValueError(f"{argument} must not be given for files: use reading=Reading({option}=COLUMN)")
    sources = [
        _arrays_input(name, model, reading, input, class_names, clusters, sample_weight, groups)
        if isinstance(model, tuple)
        else _file_input(name, _path_of(name, model), reading)
        for name, model in zip(names, models.values(), strict=True)
    ]
    return [_with_groups(source, reading) for source in sources]


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
    try:
        clusters = image_clusters(data.values, reading.clusters(data))
        clustered = replace(data, clusters=None if clusters is None else np.asarray(clusters))
        scored = _scored(reading.rows(clustered), reading)
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path}: {error}") from error
    return ReportInput(name, path, data, *scored, reading.split or "test")


def _arrays_input(
    name: str,
    arrays: tuple[Array, Array],
    reading: Reading,
    input: str | None,
    class_names: Sequence[str] | None,
    clusters: Array | None,
    sample_weight: Array | None,
    groups: Array | None,
) -> ReportInput:
    logits, labels = arrays
    values, target = as_tensor("logits", logits).detach().cpu(), as_tensor("target", labels).detach().cpu()
    try:
        own_clusters = image_clusters(values, INDEPENDENT if reading.cluster == INDEPENDENT else clusters)
        structure: dict[str, Any] = {"clusters": own_clusters, "sample_weight": sample_weight}
        rows = as_rows(
            values, target, input=input, ignore_index=reading.ignore_index, binary=reading.binary, **structure
        )
        column = _column("groups", groups, len(values))
        if class_names is not None and len(class_names) != rows.num_classes:
            raise ValueError(f"class_names has {len(class_names)} names, but there are {rows.num_classes} classes")
        scored = _scored(rows, reading)
    except (ValueError, IndexError) as error:
        raise ValueError(f"{name}: {error}") from error
    size = " x ".join(map(str, values.shape))
    taken = f"{'logits' if rows.input == 'logits' else 'probabilities'} ({size}, {str(values.dtype)[6:]}) from Python"
    names = None if class_names is None else tuple(class_names)
    data = Predictions(
        values,
        rows.input,
        target.long(),
        column,
        names,
        taken,
        group_name=None if groups is None else "group",
        clusters=_column("clusters", clusters, len(values)),
        weights=None if sample_weight is None else as_tensor("sample_weight", sample_weight).double().cpu().numpy(),
    )
    return ReportInput(name, None, data, *scored, "test")


def _column(name: str, given: Array | None, length: int) -> NDArray[Any] | None:
    """Return one value per sample as a numpy array."""
    if given is None:
        return None
    column = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    if column.shape != (length,):
        raise ValueError(f"{name} must have one entry per sample, shape ({length},), got shape {column.shape}")
    return column


def _with_groups(source: ReportInput, reading: Reading) -> ReportInput:
    """Evaluate the groups of the samples, if there are any. Numbers that are not whole are cut into quantiles."""
    data = source.data
    if data.groups is None:
        return source
    try:
        names = quantile_groups(data.groups) if data.groups.dtype.kind == "f" else data.groups
        groups = evaluate_groups(
            data.values,
            data.target,
            names,
            input=data.input,
            clusters=reading.clusters(data),
            sample_weight=data.weights,
            **reading.scoring,
        )
    except ValueError as error:
        raise ValueError(f"{source.path or source.name}: {error}") from error
    return replace(
        source,
        groups=tuple(groups),
        group_by=shortened(data.group_name or "group"),
        groups_follow_labels=groups_follow_labels(names, data.target, reading.ignore_index),
    )


def _scored(rows: Rows, reading: Reading) -> tuple[Rows, Scan, Evaluation]:
    scanned = scan(rows, num_bins=reading.num_bins, scores=True, classwise=True)
    evaluation = evaluate_rows(
        rows, scanned, reading.num_bins, settings=Settings(level=reading.level, seed=reading.seed)
    )
    return rows, scanned, evaluation
