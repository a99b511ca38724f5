"""What the text of the replication on 20 Newsgroups says, beside its generated tables, is true of the runs."""

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "lab" / "tools"))

import replication_texts as texts  # noqa: E402

TEXT = " ".join((ROOT / "lab" / "REPLICATION-20NEWSGROUPS.md").read_text(encoding="utf-8").split())
LOSSES = [group for group in texts.groups() if "gamma" not in group]


def measured(group: str, metric: str) -> list[float]:
    return [float(run.measure(metric) or 0) for run in texts.groups()[group].values()]


def mean(group: str, metric: str) -> float:
    return statistics.fmean(measured(group, metric))


def mean_of_log(group: str, rule: Callable[[Sequence[texts.Line]], texts.Line], name: str) -> float:
    return statistics.fmean(rule(run.run.log)[name] for run in texts.groups()[group].values())


def test_the_text_about_the_row() -> None:
    published = texts.replication_plan("20newsgroups")["published"]
    distances = {loss: abs(mean(loss, "ece") - published[loss]["ece"]) for loss in LOSSES}
    assert "Six of the seven published ECEs are within five points of ours, that of cross-entropy within .1" in TEXT
    assert sorted(distances.values())[-2] < 0.05 < distances["dual_focal"]
    assert distances["cross_entropy"] < 0.001
    assert "Four of the five dual focal runs have an ECE of more than 12 %." in TEXT
    assert sum(ece > 0.12 for ece in measured("dual_focal", "ece")) == 4
    assert "label smoothing has the lowest ECE as trained, and dual focal the lowest after temperature scaling" in TEXT
    assert min(LOSSES, key=lambda loss: mean(loss, "ece")) == "label_smoothing"
    assert min(LOSSES, key=lambda loss: mean(loss, "ece_temperature")) == "dual_focal"
    assert "The best temperature is 1.2 or more in every run" in TEXT
    assert min(measured("dual_focal", "temperature_ece")) == 1.2
    assert (
        "**Label smoothing** has the lowest ECE and the lowest NLL of the seven as trained, and the lowest error."
        in TEXT
    )
    assert min(LOSSES, key=lambda loss: mean(loss, "nll")) == "label_smoothing"
    assert min(LOSSES, key=lambda loss: mean(loss, "error")) == "label_smoothing"


def test_the_text_about_the_choice_of_the_epoch() -> None:
    by_error, by_nll, _ = texts.RULES.values()
    eces = {loss: mean_of_log(loss, by_nll, "test_ece") for loss in LOSSES}
    cost = {
        loss: mean_of_log(loss, by_nll, "test_error") - mean_of_log(loss, by_error, "test_error") for loss in LOSSES
    }
    assert "dual focal has an ECE of 1.8 to 4.2 % and a mean error of 28.7 %" in TEXT
    own = [by_nll(run.run.log)["test_ece"] for run in texts.groups()["dual_focal"].values()]
    assert (round(100 * min(own), 1), round(100 * max(own), 1)) == (1.8, 4.2)
    assert round(100 * mean_of_log("dual_focal", by_nll, "test_error"), 1) == 28.7
    assert "it has the lowest ECE of the seven, and 1.1 points more error" in TEXT
    assert min(eces, key=eces.__getitem__) == "dual_focal"
    assert round(100 * cost["dual_focal"], 1) == 1.1
    assert "Only label smoothing pays less." in TEXT
    assert sorted(cost, key=cost.__getitem__)[:2] == ["label_smoothing", "dual_focal"]
    assert "The temperature costs no error, the epoch .5 to 5.4 points here." in TEXT
    assert (round(100 * min(cost.values()), 1), round(100 * max(cost.values()), 1)) == (0.5, 5.4)
    assert "between 3 and 8 points of a published ECE are the choice of the epoch" in TEXT
    spreads = [float(row.split("|")[-2]) for row in texts.spread_table().splitlines()[2:]]
    assert (round(min(spreads)), round(max(spreads))) == (3, 8)
