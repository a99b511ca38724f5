"""The contents of a report come from the metrics, and fit into a page, whatever the input."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from report_pages import HOSTILE, contents, contents_of
from samples import run_predictions

import dualfocal
from dualfocal import metrics
from dualfocal.calibrators import compare_calibrators, make_calibrator
from dualfocal.report import write_report

PAGE = Path(dualfocal.__file__).parent / "report" / "page"


@pytest.fixture
def logits(pages, folder) -> tuple[torch.Tensor, torch.Tensor]:
    pages("logits")
    with np.load(folder / "logits.npz") as arrays:
        return torch.from_numpy(arrays["logits"]), torch.from_numpy(arrays["target"])


def texts(table: dict, column: int) -> list[str]:
    cells = [row[column] for row in table["rows"]]
    return [cell if isinstance(cell, str) else cell[0] for cell in cells]


def test_the_chart_library_is_the_official_one():
    sums = dict(re.findall(r"^\| `(\S+)` .*`([0-9a-f]{64})` \|$", (PAGE / "vendor" / "README.md").read_text(), re.M))
    scripts = sorted(path.name for path in (PAGE / "vendor").glob("*.js"))
    assert sorted(sums) == scripts == ["d3.min.js", "plot.umd.min.js"]
    for name, expected in sums.items():
        assert hashlib.sha256((PAGE / "vendor" / name).read_bytes()).hexdigest() == expected
    assert sum((PAGE / "vendor" / name).stat().st_size for name in scripts) < 1_000_000
    for licence in ("d3.LICENSE", "plot.LICENSE"):
        assert "Permission to use, copy, modify" in (PAGE / "vendor" / licence).read_text()


def test_the_same_input_gives_the_same_bytes(pages, folder, tmp_path):
    before = pages("logits").read_bytes()
    size = write_report([folder / "logits.npz"], tmp_path / "again.html", calibrators=())
    assert (tmp_path / "again.html").read_bytes() == before
    assert size == len(before)


def test_the_page_asks_for_nothing(pages):
    text = pages("logits").read_text()
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)  # addresses in the library are namespaces
    assert not re.findall(r"https?:|@import|url\(|<link|\bsrc=[^x]", own)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src &#x27;none&#x27;; script-src &#x27;sha256-")
    assert "unsafe-eval" not in policy[1]
    assert "img-src data:;" in policy[1]


def test_text_of_data_is_inert(pages, folder, tmp_path):
    pages("logits")
    title = "<b>5 & 6</b>"
    write_report([folder / "logits.npz"], tmp_path / "page.html", calibrators=(), title=title)
    text = (tmp_path / "page.html").read_text()
    assert "<title>&lt;b&gt;5 &amp; 6&lt;/b&gt;</title>" in text
    for name in HOSTILE[:2]:
        assert name not in text
    assert "\u2028" not in text
    actual = contents_of(tmp_path / "page.html")
    assert actual["classNames"] == HOSTILE
    assert actual["title"] == title


def test_tables_have_the_numbers_of_the_metrics(pages, logits):
    page = contents_of(pages("logits"))
    [run] = page["runs"]
    result = metrics.evaluate(*logits, inference=True)
    assert run["verdict"] == page["headline"] == result.verdict(HOSTILE)
    expected = [row[1] for row in result.table().rows[:-1]]
    [table] = page["metrics"]
    assert texts(table, 1)[: len(expected)] == expected
    assert texts(table, 1)[-3:] == [f"{100 * result.overconfidence:+.2f}", "< 0.001", "< 0.001"]
    assert table["rows"][-2][1][1] == result.inference.p_value
    assert table["rows"][-1][1][1] == result.inference.classwise.p_value
    floor = result.inference.floors["ece"]
    [remark] = [row[1][2] for row in table["rows"] if row[0][0] == "ECE [%]"]
    assert remark == f"floor {100 * floor.mean:.2f}, 95 % {100 * floor.q95:.2f}"


def test_classes_have_their_probabilities_beside_their_shares(pages, logits):
    values, target = logits
    probs = values.double().softmax(1)
    confidence, predicted = probs.max(1)
    [run] = contents_of(pages("logits"))["runs"]
    rows = {row[0][0]: [cell[1] for cell in row[1:]] for row in run["classes"]["rows"]}
    one_vs_rest = []
    for c, name in enumerate(HOSTILE):
        mine = predicted == c
        p, right = confidence[mine], (target == c)[mine].double()
        gap = float(p.mean() - right.mean())
        mean, share = float(probs[:, c].mean()), float((target == c).double().mean())
        assert rows[name][:3] == pytest.approx([100 * mean, 100 * share, 100 * (mean - share)], abs=1e-6)
        expected = [int(mine.sum()), 100 * float(p.mean()), 100 * float(right.mean()), 100 * gap]
        assert rows[name][4:8] == pytest.approx(expected, abs=1e-6)
        one_vs_rest.append(rows[name][9] / 100)
    assert np.mean(one_vs_rest) == pytest.approx(metrics.classwise_ece(values, target))
    smallest_p = [min(row[4][1], row[9][1]) for row in run["classes"]["rows"]]
    assert smallest_p == sorted(smallest_p)


def test_an_overconfident_class_comes_first(tmp_path):
    generator = torch.Generator().manual_seed(0)
    probs = (4 * torch.randn(6000, 50, generator=generator)).softmax(1)
    target = torch.multinomial(probs, 1, generator=generator)[:, 0]
    target[(probs.argmax(1) == 7) & (torch.rand(6000, generator=generator) < 0.5)] = 8
    [run] = contents(tmp_path, {"p": (probs, target)}, input="probs")["runs"]
    assert {row[0][0] for row in run["classes"]["rows"] if min(row[4][1], row[9][1]) <= 0.05} == {"7", "8"}
    assert "worst: predictions of class 7, confidence " in run["verdict"]


def test_mistakes_are_the_most_confident_wrong_ones(pages, logits):
    values, target = logits
    confidence, predicted = values.double().softmax(1).max(1)
    wrong = (predicted != target).nonzero()[:, 0]
    worst = wrong[confidence[wrong].argsort(descending=True)][:12].tolist()
    [run] = contents_of(pages("logits"))["runs"]
    actual = run["mistakes"]
    assert actual["total"] == len(wrong)
    assert [item["place"] for item in actual["items"]] == worst
    first = actual["items"][0]
    assert (first["true"], first["predicted"]) == (HOSTILE[target[worst[0]]], HOSTILE[predicted[worst[0]]])
    assert first["confidence"] == pytest.approx(float(confidence[worst[0]]))
    assert first["ofTrue"] == pytest.approx(float(values[worst[0]].double().softmax(0)[target[worst[0]]]))


def test_places_count_ignored_samples(tmp_path):
    values = torch.tensor([[9.0, 0.0]] * 4)
    [run] = contents(tmp_path, {"p": (values, torch.tensor([0, -100, 0, 1]))})["runs"]
    assert [item["place"] for item in run["mistakes"]["items"]] == [3]
    assert run["data"]["count"] == 3


def test_files_are_cross_fitted(folder, logits, tmp_path):
    [run] = contents(tmp_path, [folder / "logits.npz"], calibrators=("temperature", "vector"))["runs"]
    actual = compare_calibrators(*logits, ["temperature", "vector"])
    assert texts(run["calibrators"], 0)[0] == "uncalibrated"
    assert dict(zip(texts(run["calibrators"], 0), texts(run["calibrators"], 1), strict=True)) == {
        method.name: f"{method.scores['nll']:.4f}" for method in actual.methods
    }
    assert run["advice"] == actual.verdict()
    assert "Chosen among 2 methods on these samples" in actual.verdict()
    assert run["calibrators"]["caption"] == "Calibrators: means over 2 repeats"
    titles = [column["title"] for column in run["metrics"][0]["columns"]]
    assert titles == [
        "metric",
        "uncalibrated",
        *(f"{method.name}, repeat 1" for method in actual.methods if method.name != "uncalibrated"),
    ]
    assert run["how"].startswith(actual.caveat())
    fitted = make_calibrator("temperature").fit(*logits)
    assert run["temperature"] == float(fitted.temperature)
    assert run["temperatureFrom"] == "these same samples"


def test_runs_are_calibrated_on_their_validation_split(runs, folder):
    [run, _] = contents_of(runs)["runs"]
    fitted = make_calibrator("temperature").fit(*run_predictions(folder / "a", "val"))
    values, target = run_predictions(folder / "a", "test")
    assert run["temperature"] == float(fitted.temperature)
    assert texts(run["calibrators"], 1) == [f"{metrics.nll(z, target):.4f}" for z in (values, fitted(values))]
    change = metrics.compare(values, fitted(values), target).differences["nll"]
    _, cell = run["calibrators"]["rows"]
    minus = "\N{MINUS SIGN}"
    assert cell[2][0] == f"{change.difference:+.4f}".replace("-", minus)
    assert cell[2][2] == f"{change.low:+.4f} to {change.high:+.4f}".replace("-", minus)
    assert "validation split (200 samples)" in run["how"]
    assert "scored on 997 other samples" in run["how"]


@pytest.mark.parametrize("num_classes", [10, 300])
def test_a_page_is_never_too_large(tmp_path, monkeypatch, num_classes):
    monkeypatch.setattr("dualfocal.report.html.MOST_BYTES", 1_400_000)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200_000 // num_classes * 10, num_classes)).astype(np.float32)
    names = [f"{c} {'<' * 300}" for c in range(num_classes)]
    np.savez(tmp_path / "a.npz", logits=logits, target=rng.integers(num_classes, size=len(logits)), class_names=names)
    size = write_report([tmp_path / "a.npz"], tmp_path / "a.html", calibrators=())
    assert 1_380_000 < size <= 1_400_000
    [run] = contents_of(tmp_path / "a.html")["runs"]
    assert run["data"]["count"] < run["data"]["total"] == len(logits)
    assert max(map(len, contents_of(tmp_path / "a.html")["classNames"])) == 60


def test_bad_inputs_are_refused(logits, folder, tmp_path):
    np.savez(tmp_path / "nan.npz", logits=np.full((3, 2), np.nan), target=np.zeros(3, int))
    file = folder / "logits.npz"
    for models, page, words in (
        ([file, file], "page.html", r"logits\.npz.*more than once"),
        ([], "page.html", "1 to 32 .* 0"),
        ([file], "page.npz", r"\.html.*'page\.npz'"),
        ([tmp_path / "nan.npz"], "page.html", r"nan\.npz.*logits.*NaN"),
    ):
        with pytest.raises(ValueError, match=words):
            write_report(models, tmp_path / page)
        assert not (tmp_path / page).exists()


# Arrays


def test_arrays_give_the_page_of_their_file(logits, pages, tmp_path):
    """Only the origin of the predictions differs."""
    ours, theirs = contents(tmp_path, {"logits.npz": logits}, class_names=HOSTILE), contents_of(pages("logits"))
    for page in (ours, theirs):
        assert page["runs"][0].pop("origin")
    assert ours == theirs


def test_arrays_files_and_runs_on_one_page(folder, pages, tmp_path):
    pages("logits")
    probs = torch.rand(200, 5, generator=torch.Generator().manual_seed(0)).softmax(1)
    models = {"arrays": (probs, torch.arange(200) % 5), "file": str(folder / "logits.npz")}
    page = contents(tmp_path, models, input="probs", class_names="abcde", calibrators=["temperature"])
    assert [run["name"] for run in page["runs"]] == ["arrays", "file"]
    assert page["runs"][0]["verdict"] == metrics.evaluate(
        probs, torch.arange(200) % 5, input="probs", inference=True
    ).verdict("abcde")


@pytest.mark.slow
def test_the_example_of_the_docs(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "evaluate.md").read_text(encoding="utf-8")
    [example] = [code for code in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if "write_report" in code]
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    assert [run["name"] for run in contents_of(tmp_path / "report.html")["runs"]] == ["forest", "logistic regression"]


def test_models_that_cannot_be_scored_are_named(tmp_path):
    probs, target = torch.full((40, 2), 0.5), torch.arange(40) % 2
    for arrays, options, error, words in (
        ((probs, target), {}, ValueError, 'logits .*input="probs"'),
        ((probs, target), {"input": "probs", "class_names": ["a"]}, ValueError, "class_names must be 2 distinct names"),
        ((probs, target + 5), {"input": "probs"}, IndexError, "target "),
        (metrics.evaluate(probs, target, input="probs"), {}, TypeError, "Evaluation"),
        ([probs, target], {}, TypeError, r"\(logits, target\).*list"),
    ):
        with pytest.raises(error, match=f"mine: .*{words}"):
            write_report({"mine": arrays}, tmp_path / "page.html", **options)
    assert not (tmp_path / "page.html").exists()
