"""`dualfocal report`: its page, its output and its refusals."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from samples import draw_logits, write_run

from dualfocal import metrics
from dualfocal.calibrators import CALIBRATORS


@pytest.fixture(autouse=True)
def _files():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(300, 4, generator=generator)
    target = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    np.savez("a.npz", logits=2 * logits.numpy(), target=target.numpy())
    scores = torch.rand(200, generator=generator)
    np.savez("score.npz", score=scores.numpy(), outcome=torch.bernoulli(scores, generator=generator).long().numpy())


def contents(file: str = "report.html") -> dict:
    match = re.search(r'id="contents">(.*?)</script>', Path(file).read_text(), re.DOTALL)
    return json.loads(match[1])


def test_the_output_names_file_and_size(run):
    out, err = run("report", "a.npz")
    size = Path("report.html").stat().st_size
    assert out == f"Report: report.html ({size / 1e6:.1f} MB)\n"
    assert err == ""
    [subject] = contents()["runs"]
    methods = [row[0] for row in subject["calibrators"]["rows"]]
    assert methods[0] == "uncalibrated"
    assert sorted(methods[1:]) == sorted(CALIBRATORS)


def test_evaluate_and_report_give_the_same_recommendation(run, record):
    """Two methods that are nearly as good: one rule, one list of methods and one seed choose between them."""
    run("report", "a.npz")
    [subject] = contents()["runs"]
    [evaluated] = record("evaluate", "a.npz", "--calibrate", "all")["files"]
    comparison = evaluated["calibration"]
    assert {row[0] for row in subject["calibrators"]["rows"]} == {row["method"] for row in comparison["methods"]}
    out, _ = run("evaluate", "a.npz", "--calibrate", "all")
    assert subject["advice"] in out
    assert subject["advice"].startswith(f"Use {comparison['recommended']}: ")


def test_options_reach_the_metrics(run):
    options = ("--probs", "score", "--target", "outcome", "--binary", "positive", "--num-bins", "8", "--level", "0.8")
    run("report", "score.npz", *options, "--calibrators", "none", "--title", "Mine", "-o", "x.html", "--seed", "3")
    content = contents("x.html")
    with np.load("score.npz") as file:
        arrays = dict(file)
    settings = {"input": "probs", "binary": "positive", "num_bins": 8, "inference": True, "level": 0.8, "seed": 3}
    result = metrics.evaluate(arrays["score"], arrays["outcome"], **settings)
    assert content["title"] == "Mine"
    assert content["runs"][0]["verdict"] == result.verdict()
    assert content["runs"][0]["calibrators"] is None
    assert content["settings"]["numBins"] == 8
    assert "80 %: " in json.dumps(content["metrics"])


def test_bad_input_is_one_line(refused):
    Path("empty").mkdir()
    for arguments, words in (
        (("missing.npz",), "missing.npz: there is no such file"),
        (("a.npz", "a.npz"), "a.npz is given more than once"),
        (("a.npz", f"./../{Path.cwd().name}/a.npz"), "a.npz is given more than once"),
        (("a.npz", "-o", "a.npz"), "a.npz is also an input"),
        (("a.npz", "-o", "page.txt"), "must end in .html or .htm, got 'page.txt'"),
        (("a.npz", "-o", "nowhere/page.html"), "there is no folder 'nowhere'"),
        (("a.npz", "--num-bins", "1001"), "from 1 to 1,000, got 1001"),
        (("empty",), "empty: must be a file, a run folder or a folder of finished runs"),
        (("a.npz", "--calibrators", "temprature"), "did you mean temperature"),
        (("a.npz", "--calibrators", "vector,vector"), "only once, got vector 2 times"),
        (("score.npz", "--probs", "score", "--target", "outcome"), "score.npz: 'score' is one score per sample"),
    ):
        assert words in refused("report", *arguments), arguments
    assert not Path("report.html").exists()


def test_a_folder_means_its_finished_runs(run):
    for name in "abc":
        write_run(Path("runs") / name, {"test": draw_logits(300, 4)})
    Path("runs/c/predictions.safetensors").unlink()
    _, err = run("report", "runs", "--calibrators", "none")
    assert [subject["name"] for subject in contents()["runs"]] == ["a", "b"]
    assert err == "dualfocal: left out, not finished: runs/c\n"


def test_an_old_report_stays_when_a_new_one_fails(run, refused):
    run("report", "a.npz", "--calibrators", "none")
    before = Path("report.html").read_bytes()
    np.savez("a.npz", logits=np.zeros((3, 2)), target=np.array([0, 1, 7]))
    assert refused("report", "a.npz").startswith("a.npz: target 7 is out of range")
    assert Path("report.html").read_bytes() == before


def test_clusters_groups_and_a_second_model(run):
    with np.load("a.npz") as file:
        arrays = dict(file)
    columns = {"patient": np.arange(300) // 5, "hospital": np.array(["north", "south", "east"])[np.arange(300) % 3]}
    np.savez("a.npz", **arrays, **columns)
    np.savez("b.npz", logits=arrays["logits"] / 2, target=arrays["target"], **columns)
    run("report", "a.npz", "b.npz", "--cluster", "patient", "--group-by", "hospital", "--calibrators", "none")
    content = contents()
    expected = metrics.evaluate(arrays["logits"], arrays["target"], inference=True, clusters=columns["patient"])
    assert content["results"]["models"][0]["evaluation"] == json.loads(json.dumps(expected.to_dict()))
    clusters = dict(content["decision"]["sentences"])["Clusters"]
    assert f"a.npz: {expected.inference.clusters.sentence(300)}" in clusters
    compared = metrics.compare(
        arrays["logits"] / 2, arrays["logits"], arrays["target"], clusters=columns["patient"]
    ).differences["nll"]
    actual = content["results"]["comparison"]
    assert (actual["best"], actual["num_clusters"]) == ("b.npz", 60)
    assert actual["differences"]["a.npz"]["nll"]["interval"] == pytest.approx([compared.low, compared.high])
    groups = content["runs"][0]["groups"]["rows"]
    assert sorted(group["name"] for group in groups) == ["east", "north", "south"]
    assert [group["count"] for group in groups] == [100] * 3
    south = np.arange(300) % 3 == 1
    error = metrics.error_rate(arrays["logits"][south], arrays["target"][south])
    assert next(group["error"] for group in groups if group["name"] == "south") == pytest.approx(error)


def test_weights(run):
    weight = np.random.default_rng(0).exponential(size=300)
    with np.load("a.npz") as file:
        arrays = dict(file)
    np.savez("a.npz", **arrays, w=weight)
    run("report", "a.npz", "--weight", "w", "--calibrators", "none")
    expected = metrics.evaluate(arrays["logits"], arrays["target"], inference=True, sample_weight=weight)
    content = contents()
    assert content["results"]["models"][0]["evaluation"] == json.loads(json.dumps(expected.to_dict()))
    assert content["headline"] == expected.verdict()
    assert f"carry the information of {expected.weights.effective:.0f}" in content["headline"]


def test_columns_that_cannot_be_used(refused):
    with np.load("a.npz") as file:
        np.savez("a.npz", **file, one=np.zeros(300, dtype=int))
    assert "'target' of a.npz holds the labels" in refused("report", "a.npz", "--group-by", "target")
    assert "a cluster must be known before the label" in refused("report", "a.npz", "--cluster", "target")
    assert "at least two different values" in refused("report", "a.npz", "--cluster", "one")
    assert not Path("report.html").exists()


def test_a_monitor_has_a_section(run, refused):
    run("monitor", "state.json", "a.npz", code=1)  # an alarm
    run("report", "a.npz", "--monitor", "state.json", "--calibrators", "none")
    monitor = contents()["monitor"]
    assert monitor["verdict"].startswith("Alarm: miscalibrated")
    assert monitor["count"] == [300]
    assert monitor["alarm"]["samples"] == 300
    assert "missing.json" in refused("report", "a.npz", "--monitor", "missing.json")
    Path("other.json").write_text("{}")
    assert "other.json" in refused("report", "a.npz", "--monitor", "other.json")
    run("monitor", "state.json", "--reset")
    assert refused("report", "a.npz", "--monitor", "state.json").startswith("state.json: has no samples yet")
