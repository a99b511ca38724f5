"""The pictures of the replication report: what they show is what the runs have."""

import math
from pathlib import Path

import pytest
import torch

from dualfocal.cli import main
from dualfocal.metrics import evaluate
from dualfocal.plots.style import NotebookFigure
from dualfocal_lab.paper import replication
from dualfocal_lab.paper.replication import Replication, decide_claims
from dualfocal_lab.paper.replication_figures import (
    AUTHORS_LABEL,
    ReplicationRuns,
    read_log,
    reliability_figure,
    temperature_figure,
    training_curves,
    training_figure,
)
from dualfocal_lab.paper.replication_forest import PANELS, claim_rows, claims_figure
from dualfocal_lab.plots.forest import ForestRow, axis_limits, forest_legend, forest_panel
from dualfocal_lab.plots.seed_reliability import SeedEvaluations, seed_reliability_figure
from dualfocal_lab.runs import Run, find_runs

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "results" / "published_logs" / "cifar10.csv"
LOGITS = ROOT / "results" / "published_logits"


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return find_runs(ROOT / "results" / "cifar10")


@pytest.fixture(scope="module")
def measured(runs: list[Run]) -> ReplicationRuns:
    return ReplicationRuns.of(runs)


@pytest.fixture(scope="module")
def decided(runs: list[Run]) -> Replication:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replication, "DRAWS", 3)
        return decide_claims(runs)


# Rows of the picture of claims


def test_a_row_has_the_runs_their_mean_and_the_published_value(decided: Replication, measured: ReplicationRuns) -> None:
    parts = [(claim.id, part) for claim in decided.claims for part in claim.parts if part.role != "reported"]
    left, right = claim_rows(parts, PANELS[0].metrics)
    row = next(row for row in left if row.label == "dual focal")
    seeds = measured.groups["dual_focal"]
    assert row.values == pytest.approx([100 * run.result.evaluation().ece for run in seeds.values()])
    assert row.hollow == tuple(seed in (1, 2) for seed in seeds)
    assert (row.mean, row.published) == pytest.approx((sum(row.values) / len(row.values), 0.46))
    difference = right[[row.label for row in left].index("FLSD-53")]
    rival = next(row for row in left if row.label == "FLSD-53")
    assert difference is not None
    assert difference.mean == pytest.approx(row.mean - rival.mean)
    assert (difference.published, difference.claimed) == (pytest.approx(-1.09), (-math.inf, 0.0))


def test_every_judged_quantity_is_in_the_picture(decided: Replication) -> None:
    parts = [(claim.id, part) for claim in decided.claims for part in claim.parts if part.role != "reported"]
    rows = [row for panel in PANELS for column in claim_rows(parts, panel.metrics) for row in column if row is not None]
    notes = [row.note for row in rows if row.note]
    expected = [f"{name} {part.verdict}" for name, part in parts if part.kind != "mean"]
    assert sorted(notes) == sorted(expected)


def test_the_picture_says_pending(decided: Replication) -> None:
    texts = [text.get_text() for axis in claims_figure(decided).axes for text in axis.texts]
    pending = [claim.id for claim in decided.claims if claim.verdict == "pending"]
    assert {text.split()[0] for text in texts if text.endswith("pending")} >= set(pending)


# Other pictures


def test_the_curves_are_those_of_the_logs(measured: ReplicationRuns) -> None:
    curves = training_curves(measured)
    assert {1, 2} <= curves["dual_focal"].keys()
    assert 3 not in curves["dual_focal"]  # trained without test_each_epoch
    assert len(curves["dual_focal"][2]) == 350
    figure = training_figure(measured, read_log(LOGS))
    assert figure is not None
    assert AUTHORS_LABEL in [text.get_text() for text in figure.legends[0].get_texts()]


def test_no_run_with_test_ece_gives_no_picture_of_training(runs: list[Run]) -> None:
    without = ReplicationRuns.of([run for run in runs if run.path.name.endswith(("focal-seed3", "focal-seed4"))])
    assert training_figure(without, read_log(LOGS)) is None
    assert reliability_figure(without, Path("nowhere")) is not None


def test_all_runs_are_before_and_after_temperature(measured: ReplicationRuns, runs: list[Run]) -> None:
    axis = temperature_figure(measured).axes[0]
    dots = [line for line in axis.lines if line.get_marker() == "o"]
    assert len(dots) == 3 * len(runs)
    eces = [
        run.require_result().evaluation("test", by).ece
        for run in runs
        for by in (None, "temperature_ece", "temperature")
    ]
    assert sorted(float(line.get_xdata()[0]) for line in dots) == pytest.approx(sorted(100 * ece for ece in eces))


def test_published_networks_are_in_the_reliability_diagrams(measured: ReplicationRuns) -> None:
    with_theirs, without = (reliability_figure(measured, folder) for folder in (LOGITS, Path("nowhere")))
    assert with_theirs is not None
    assert without is not None
    more = [len(a.lines) - len(b.lines) for a, b in zip(with_theirs.axes, without.axes, strict=True)]
    assert more[:3] == [1, 1, 0]  # cross-entropy, FLSD-53, dual focal


def test_the_command_writes_the_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replication, "DRAWS", 3)
    monkeypatch.chdir(tmp_path)  # without published logs and logits
    with pytest.raises(SystemExit) as ended:
        main(["paper", "replication", str(ROOT / "results" / "cifar10"), "--figures", "new/folder"])
    assert ended.value.code == 0
    names = ["claims.png", "reliability.png", "temperature.png", "training.png"]
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == names
    assert "Written: new/folder/claims.png" in capsys.readouterr().out


# Forest plots and reliability of several runs


def test_an_interval_beyond_the_axis_ends_in_an_arrow() -> None:
    axis = NotebookFigure().subplots()
    rows = [ForestRow(label="a", values=(1.0, 2.0), mean=1.5, interval=(-9.0, 2.1))]
    forest_panel(rows, ax=axis)
    markers = {line.get_marker(): float(line.get_xdata()[0]) for line in axis.lines if line.get_marker() in "<>"}
    assert markers == {"<": axis.get_xlim()[0]}


def test_a_logarithmic_axis_has_three_ticks_or_more_and_takes_negative_intervals() -> None:
    axis = NotebookFigure().subplots()
    forest_panel([ForestRow(label="a", values=(0.17, 0.4), mean=0.2, interval=(-0.1, 0.3))], log=True, ax=axis)
    low, high = axis.get_xlim()
    assert 0 < low < 0.17
    assert high > 0.4
    assert list(axis.xaxis.get_major_locator()()) == pytest.approx([0.15, 0.2, 0.3, 0.4])


def test_limits_without_any_number() -> None:
    low, high = axis_limits([ForestRow(label="a")])
    assert low < high


def test_marks_without_a_label_are_not_in_the_legend() -> None:
    assert forest_legend()[1] == ["published", "one run of ours", "our mean"]
    assert forest_legend(floor="noise floor")[1][-1] == "noise floor"


def test_bins_with_few_samples_are_not_drawn() -> None:
    logits = torch.tensor([[4.0, 0.0]] * 30 + [[0.1, 0.0]] * 3)
    run = evaluate(logits, torch.zeros(33, dtype=torch.long), num_bins=10)
    figure = seed_reliability_figure({"a": SeedEvaluations([run], "#000000")})
    line = figure.axes[0].lines[-1]
    assert [float(x) for x in line.get_xdata()] == pytest.approx([float(logits.softmax(1)[0, 0])])


def test_a_method_without_runs_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one run"):
        SeedEvaluations([], "#000000")
