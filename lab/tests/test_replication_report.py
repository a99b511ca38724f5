"""The replication report: its generated parts are up to date, and what its text says is true of the runs."""

import doctest
import re
import shutil
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image

from dualfocal_lab.paper.intervals import Estimate
from dualfocal_lab.paper.measurements import MeasuredRun
from dualfocal_lab.paper.published import published
from dualfocal_lab.paper.replication_figures import LAST_RATE, read_log, training_curves
from dualfocal_lab.paper.replication_plan import replication_plan
from dualfocal_lab.paper.verdicts import Difference, Part, Verdict
from dualfocal_lab.runs import Run
from dualfocal_lab.runs.layout import RECIPE

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "lab" / "tools"))

import replication_pages  # noqa: E402
import replication_runs  # noqa: E402
import replication_tables  # noqa: E402
from replication_tables import LOGS, TF32, Report  # noqa: E402

TEXT = " ".join((ROOT / "lab" / "REPLICATION.md").read_text(encoding="utf-8").split())
CELL = {"data": "cifar10", "model": "resnet50"}


@pytest.fixture(scope="module")
def report() -> Report:
    return Report.read()


def part(report: Report, claim: str, metric: str, against: str | None = None) -> Part:
    """A quantity of a claim; of a difference, with the loss that is subtracted."""
    parts = [part for each in report.decided.claims if each.id == claim for part in each.parts]
    return next(p for p in parts if p.metric == metric and against in (None, list(p.values)[-1]) and p.kind != "mean")


# Generated parts


@pytest.mark.parametrize("page", replication_pages.PAGES)
def test_the_pages_are_what_the_script_makes_of_the_runs(page: str, report: Report) -> None:
    committed = (ROOT / page).read_text(encoding="utf-8")
    assert replication_pages.filled(committed, report) == committed, "run python lab/tools/replication_pages.py"


def test_the_pictures_are_what_the_script_draws(report: Report, tmp_path: Path) -> None:
    pinned = re.search(r"^matplotlib==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    if pinned is None or matplotlib.__version__ != pinned[1]:
        pytest.skip("another version of matplotlib draws other pixels")
    for drawn in replication_pages.draw(report, tmp_path):
        again, committed = (np.asarray(Image.open(path)) for path in (drawn, replication_pages.PICTURES / drawn.name))
        assert again.shape == committed.shape, drawn.name
        differ = (np.abs(again.astype(int) - committed.astype(int)).max(-1) > 40).sum()
        assert differ < 50, f"{drawn.name}: run python lab/tools/replication_pages.py"


def test_every_picture_is_on_the_page_and_described() -> None:
    shown = dict(re.findall(r'<img src="replication/([\w-]+\.png)" width="\d+" alt="([^"]*)"', TEXT))
    assert {*shown, "20newsgroups.png"} == {path.name for path in replication_pages.PICTURES.iterdir()}
    assert all(len(text.split()) >= 10 for text in shown.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- generated: state -->\n", "each of state must end with"),
        ("<!-- generated: mine -->\n<!-- end of mine -->", "unknown parts mine; there are state"),
    ],
)
def test_marks_that_are_wrong_are_refused(text: str, message: str, report: Report) -> None:
    with pytest.raises(ValueError, match=message):
        replication_pages.filled(text, report)


def test_the_table_of_runs_has_every_run_folder(report: Report) -> None:
    table = replication_runs.runs_table(report)
    folders = {
        path.parent.relative_to(ROOT / "lab" / "results") for path in (ROOT / "lab" / "results").rglob("log.jsonl")
    }
    assert len(folders) >= 18
    assert set(re.findall(r"\]\((.*?)\)", table)) == {folder.as_posix() for folder in folders}


@pytest.mark.slow
def test_one_more_run_changes_tables_verdicts_and_pictures(report: Report, tmp_path: Path) -> None:
    old = report.measured.groups["dual_focal"][4].run
    new = Run(shutil.copytree(old.path, tmp_path / "resnet50-dual_focal-seed5"))
    new.write_json(RECIPE, replace(old.recipe, seed=5).to_dict())
    others = [run for run in report.runs if run.path.name != new.path.name]
    shorter, longer = Report(others), Report([*others, new])
    finished = sum(map(len, shorter.measured.groups.values()))
    assert f"{finished} of 18 trainings" in replication_tables.state(shorter)
    assert f"{finished + 1} of 18 trainings" in replication_tables.state(longer)
    assert "C3 " in replication_tables.state(longer)  # C3 and C8 need runs of dual focal only
    assert "C3 " not in replication_tables.state(shorter)
    assert "| ours, 5 runs |" in replication_tables.losses_table(longer)
    assert new.path.name in replication_tables.missing(shorter)
    assert new.path.name not in replication_tables.missing(longer)
    assert len(replication_pages.draw(longer, tmp_path / "pictures")) == 4


@pytest.mark.parametrize("module", [replication_tables, replication_runs])
def test_doctests(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


# What the text says. If a new run makes one of these tests fail, the sentence must be written anew.


def test_all_statements_are_on_the_page(report: Report) -> None:
    for sentence, holds in statements(report):
        assert sentence in TEXT, f"not on the page: {sentence}"
        assert holds, f"no longer true: {sentence}"


def statements(report: Report) -> Iterator[tuple[str, bool]]:
    """Sentences of the page, and whether they are true of the runs."""
    yield from about_losses(report)
    yield from about_differences(report)
    yield from about_practice(report)
    yield from about_precision(report)


def about_losses(report: Report) -> Iterator[tuple[str, bool]]:
    theirs = replication_plan()["published"]
    entropy, focal, dual = (report.of_loss(loss) for loss in ("cross_entropy", "flsd", "dual_focal"))
    gaps = [abs(run.measure(name) - theirs["cross_entropy"][name]) for run in entropy for name in ("error", "ece")]
    yield "Error and ECE of our run differ from the published ones by at most 0.05 points", max(gaps) < 0.00051
    published_nll = published("nll").value(**CELL, method="cross_entropy", stage="before")
    yield "the NLL by 3 %", all(round(100 * abs(run.measure("nll") / published_nll - 1)) == 3 for run in entropy)
    yield (
        "The temperature by ECE is the published one, 2.5.",
        all(run.measure("temperature_ece") == pytest.approx(2.5) for run in entropy),
    )
    below = all(run.measure("ece") < theirs["flsd"]["ece"] for run in focal)
    errors = [run.measure("error") for run in focal]
    yield (
        "Our runs have a lower ECE than the published network, and errors on both sides of the published one.",
        below and min(errors) < theirs["flsd"]["error"] < max(errors),
    )
    lower = max(report.values("dual_focal", "ece")) < min(report.values("cross_entropy", "ece"))
    half = 2 * max(report.values("dual_focal", "nll")) < min(report.values("cross_entropy", "nll"))
    yield "has a lower ECE than cross-entropy in every run, and an NLL of less than half", lower and half
    predicted = part(report, "C3", "ece").interval
    mean = next(p for claim in report.decided.claims for p in claim.parts if p.kind == "mean").interval
    assert predicted is not None
    assert mean is not None
    yield "0.46 % lies below the prediction interval of the finished runs", predicted[0] > 0.0046
    yield "0.49 %, the published mean of repetitions, below the interval of our mean", mean[0] > 0.0049
    yield (
        "Each of these networks is over-confident, and its ECE exceeds the noise floor (p < 0.01).",
        all(overconfidence(run) > 0 and run.result.evaluation().inference.p_value < 0.01 for run in dual),
    )
    spread = max(report.values("dual_focal", "ece")) - min(report.values("dual_focal", "ece"))
    yield "Our seeds differ by less than 0.2 points.", spread < 0.002


def overconfidence(run: MeasuredRun) -> float:
    """Mean confidence minus accuracy."""
    assert run.test is not None
    logits, target = run.test
    confidence, predicted = logits.softmax(1).max(1)
    return float(confidence.mean() - (predicted == target).float().mean())


def about_differences(report: Report) -> Iterator[tuple[str, bool]]:
    def includes_zero(claim: str, metric: str) -> bool:
        difference = part(report, claim, metric, "flsd")
        assert isinstance(difference, Difference)
        assert difference.interval is not None
        return difference.interval[0] < 0 < difference.interval[1]

    same = all(includes_zero(claim, metric) for claim, metric in (("C4", "ece"), ("C5", "ece_temperature")))
    yield "No difference in ECE is shown: the intervals include 0, as trained and after temperature scaling.", same
    yield "With two runs of FLSD-53", len(report.of_loss("flsd")) == 2
    as_trained = part(report, "C4", "ece", "flsd")
    assert as_trained.interval is not None
    yield (
        "the published difference of 1.09 points as trained lies outside",
        as_trained.published == pytest.approx(-0.0109) and as_trained.interval[0] > -0.0109,
    )
    yield "the interval of the difference in NLL includes 0", includes_zero("C6", "nll")
    means = {
        name: [statistics.fmean(report.values(loss, name)) for loss in ("flsd", "dual_focal")]
        for name in ("error", "nll")
    }
    yield "Error and NLL are lower with FLSD-53 on average;", all(first < second for first, second in means.values())
    others = [*report.values("cross_entropy", "error"), *report.values("flsd", "error")]
    highest = min(report.values("dual_focal", "error")) > max(others)
    yield "Every dual focal run has a higher error than every run of the other two losses.", highest
    p_j = part(report, "C9", "median_p_j", "flsd").interval
    assert p_j is not None
    yield "Dual focal has the lower median p_j; the interval excludes 0.", p_j[1] < 0
    yield "The interval of the difference in logits includes 0.", includes_zero("C9", "mean_top_logit")
    dual = [*report.of_loss("dual_focal"), report.measured.controls[TF32]]
    ours = [auroc for run in dual if (auroc := run.measure("shift_auroc")) is not None]
    yield (
        "In our networks it is the other way round, without exception.",
        min(ours) > max(report.values("flsd", "shift_auroc")),
    )
    yield (
        "The difference of the runs that count for C11 has an interval that includes 0.",
        includes_zero("C11", "shift_auroc"),
    )


def about_practice(report: Report) -> Iterator[tuple[str, bool]]:
    entropy, dual = report.of_loss("cross_entropy"), report.of_loss("dual_focal")
    eces = report.values("dual_focal", "ece")
    scaled = report.values("cross_entropy", "ece_temperature_by_nll")
    within = all(min(eces) <= ece <= max(eces) for ece in scaled)
    yield "With a temperature by NLL, the ECE of cross-entropy lies within the range of the dual focal runs as", within
    lower = max(report.values("dual_focal", "nll")) < min(report.values("cross_entropy", "nll_temperature"))
    yield "Every dual focal run as trained has a lower NLL than cross-entropy with its temperature.", lower
    best = min(run.result.evaluation("test", by).aurc for run in entropy for by in (None, "temperature"))
    ranked = max(run.result.evaluation().aurc for run in dual) < best
    yield "a lower NLL and AURC than cross-entropy with a temperature", lower and ranked
    helped = all(run.measure("ece_temperature_by_nll") < run.measure("ece") for run in dual)
    yield "Our runs in bfloat16 have an ECE of more than 1 %, the TF32 control 0.81 %.", min(eces) > 0.01
    yield "A temperature by NLL lowers it in each of them.", helped
    clean = [statistics.fmean(report.values("dual_focal", name)) for name in ("error", "nll")]
    rival = [statistics.fmean(report.values("flsd", name)) for name in ("error", "nll")]
    no_better = all(ours > theirs for ours, theirs in zip(clean, rival, strict=True))
    yield "our runs show no advantage over FLSD-53 in error, ECE or NLL", no_better
    last_20 = report.values("dual_focal gamma 6", "ece_last_20")
    yield (
        "Ours with gamma 6 has an ECE of 0.91 % over its last 20 epochs",
        [round(100 * x, 2) for x in last_20] == [0.91],
    )
    pending = [claim.verdict for claim in report.decided.claims if claim.id == "C10"]
    yield "(C10, pending)", pending == [Verdict.PENDING]


def about_precision(report: Report) -> Iterator[tuple[str, bool]]:
    tf32 = report.measured.controls[TF32].measure("ece")
    assert tf32 is not None
    distances = [round(100 * (report.measured.groups["dual_focal"][seed].measure("ece") - tf32), 2) for seed in (1, 2)]
    yield "TF32 differs by 0.37 and 0.31 points", distances == [0.37, 0.31]
    yield "lower than that of every bfloat16 run of gamma 5", tf32 < min(report.values("dual_focal", "ece"))
    first = report.measured.groups["dual_focal"][1]
    precisions = [f"{100 * number:.2f}" for number in (first.run.log[-1]["test_ece"], first.measure("ece"))]
    yield "1.10 % with predictions in bfloat16, and of 1.18 % in float32", precisions == ["1.10", "1.18"]
    pairs = [(ROOT / "lab" / "results" / f"cifar10_resnet50_10_epochs{end}") for end in ("", "_float32")]
    seeds = ROOT / "lab" / "results" / "cifar10_resnet50_10_epochs_seeds"
    folders = [pairs, *([seeds / f"{name}-seed{seed}" for name in ("bfloat16", "float32")] for seed in (1, 2, 3))]
    tests = [[Run(path).require_result().evaluation("test") for path in pair] for pair in folders]
    texts = []
    for metric, factor, decimals in (("error", 100, 1), ("nll", 1, 3)):
        estimate = Estimate.of([factor * (getattr(b, metric) - getattr(a, metric)) for a, b in tests])
        half = (estimate.interval(0.9)[1] - estimate.interval(0.9)[0]) / 2
        texts.append(f"{estimate.mean:+.{decimals}f} ± {half:.{decimals}f}")
    yield f"{texts[0]} points, NLL {texts[1]} (90 %", True
    repeated = 100 * abs(tests[0][0].error - tests[1][0].error)
    yield f"Two bfloat16 runs of the same recipe and seed differ by {repeated:.1f} points.", True


def test_numbers_of_the_authors_are_those_of_their_log_and_tables(report: Report) -> None:
    ece = read_log(LOGS)
    assert len(ece) == 350
    lowest = next(back for back in range(1, 350) if ece[-back - 1] <= ece[-1])
    assert f"the lowest ECE of its last {lowest} epochs: {100 * ece[-1]:.2f} %" in TEXT
    assert f"the mean of the last 20 is {100 * statistics.fmean(ece[-20:]):.2f} %" in TEXT
    focal = read_log(LOGS, "flsd_seed1")
    numbers = [f"{100 * number:.2f} %" for number in (focal[-1], statistics.fmean(focal[-20:]))]
    assert f"ends at {numbers[0]}, with a mean of {numbers[1]} over its last 20 epochs" in TEXT
    six = report.measured.groups["dual_focal gamma 6"][1]
    theirs = read_log(LOGS, column="train_loss")
    losses = [
        f"{loss[epoch - 1]:.4f}" for epoch in (250, 350) for loss in (theirs, [x["train_loss"] for x in six.run.log])
    ]
    assert "{} and {} after epoch 250, {} and {} after epoch 350".format(*losses) in TEXT
    gammas = published("gamma").find(**CELL, method="dual_focal", metric="ece", stage="before")
    eces = [f"{100 * cell.value:.2f}" for cell in gammas]
    assert f"{', '.join(eces[:-1])} and {eces[-1]} % for gamma 2, 3, 4, 5 and 10" in TEXT
    assert 100 * published("adafocal").value(**CELL, method="ada_dual_focal") == pytest.approx(100 * ece[-1])
    repeated = published("robustness").find(**CELL, method="dual_focal", variant="mean")
    values = {(cell.metric, cell.stage): cell.printed for cell in repeated}
    assert (values["ece", "before"], values["adaptive_ece", "before"]) == ("0.49", "0.47")
    assert published("adaptive_ece").find(**CELL, method="dual_focal", stage="before")[0].printed == "0.66"
    ours = training_curves(report.measured)
    curves = [ece, *ours["dual_focal"].values(), *ours["dual_focal gamma 6"].values()]
    assert all(255 <= LAST_RATE + 1 + int(np.argmin(curve[LAST_RATE:])) <= 275 for curve in curves)


def test_minutes_are_those_of_the_runs(report: Report) -> None:
    minutes = {run.path.name: run.require_result().seconds / 60 for run in report.runs}
    alone = minutes["resnet50-cross_entropy-seed1"]
    assert f"alone on the GPU takes {alone:.0f} minutes" in TEXT
    tf32 = minutes["resnet50-dual_focal-tf32-seed1"]
    names = (
        "dual_focal-seed2",
        "dual_focal-gamma6-seed1",
        "dual_focal-seed3",
        "dual_focal-seed4",
        "flsd-seed1",
        "flsd-seed2",
    )
    shared = [minutes[f"resnet50-{name}"] for name in names]
    assert f"took {min(shared):.0f} to {max(shared):.0f} minutes; TF32, alone, {tf32:.0f}" in TEXT
