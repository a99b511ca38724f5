"""`dualfocal evaluate --format lm-eval` and `--format inspect`."""

import json
from pathlib import Path

import pytest

LOGS = Path(__file__).parents[1] / "predictions" / "logs"
pytestmark = pytest.mark.filterwarnings("default")  # the command shows warnings as a line


def test_tasks_and_all_questions_are_shown(run):
    out, err = run("evaluate", LOGS, "--format", "lm-eval", "--choice-score", "per-char")
    assert "task tiny_passages, 12 questions, clusters from 'passage'" in err
    assert "is not the accuracy" not in err
    rows = {row.split()[1]: row.split() for row in out.splitlines() if "│" in row and "tiny_" in row}
    assert rows.keys() == {"tiny_letters", "tiny_passages", "tiny_wino"}
    assert "All questions together: Over-confident" in out
    assert "of 3 tasks are detectably miscalibrated at 5 %, p-values adjusted for 3 tests (Holm)" in out
    assert "class A is the option listed first" in out


def test_plot_styles(run, refused):
    for style in ("quantile", "corp"):
        plot = ("--plot", f"{style}.svg", "--plot-style", style)
        run("evaluate", next(LOGS.glob("samples_tiny_wino*")), "--format", "lm-eval", *plot)
        assert Path(f"{style}.svg").read_text().count("<svg") == 1
    assert "--plot-style corp does not apply" in refused("evaluate", LOGS, "--format", "lm-eval", *plot)


def test_json_and_plot(run):
    out, err = run("evaluate", LOGS, "--format", "lm-eval", "--json", "--plot", "p.svg")
    content = json.loads(out)
    assert content["choice_score"] == "sum"
    assert [task["task"] for task in content["tasks"]] == ["tiny_letters", "tiny_passages", "tiny_wino"]
    assert content["overall"]["num_samples"] == 26
    assert content["overall"]["error"] == pytest.approx(21 / 26)
    passages = content["tasks"][1]
    assert passages["recorded"] == {"metric": "acc", "compared": 12, "different": 0}
    assert passages["error"] == pytest.approx(10 / 12)
    assert passages["num_options"] == [3, 5]
    assert passages["selective_accuracy"].keys() == {"0.8", "0.9", "0.95"}
    assert "p_adjusted" in passages
    assert [position["name"] for position in content["tasks"][0]["positions"]] == ["A", "B", "C", "D"]
    assert "Holm" in content["verdict"]
    drawing = Path("p.svg").read_text()
    assert drawing.count("<svg") == 1
    assert "Reliability diagram: p.svg" in err


def test_without_inference(run):
    out, _ = run("evaluate", LOGS, "--format", "lm-eval", "--no-inference", "--json")
    assert "verdict" not in json.loads(out)
    out, _ = run("evaluate", LOGS, "--format", "lm-eval", "--no-inference")
    assert "floor" not in out


def test_one_task_of_inspect(run):
    out, _ = run("evaluate", LOGS / "inspect_colours.eval", "--format", "inspect")
    assert "colours" in out
    assert "all questions" not in out
    assert "5 clusters" in out


def test_a_different_accuracy_is_said(run):
    lines = next(LOGS.glob("samples_tiny_letters*")).read_text().replace('"acc": 0.0', '"acc": 1.0', 3)
    Path("samples_t.jsonl").write_text(lines)
    _, err = run("evaluate", "samples_t.jsonl", "--format", "lm-eval")
    assert "for 3 of 8 questions, acc in the log is not the accuracy" in err


def test_fail_over_is_about_all_questions(run):
    _, err = run("evaluate", LOGS, "--format", "lm-eval", "--fail-over", "0.1", code=3)
    assert "all questions: debiased RMS error above the limit of 10 %" in err
    run("evaluate", LOGS, "--format", "lm-eval", "--fail-over", "0.99")


@pytest.mark.parametrize(
    "options",
    [
        ["--logits", "x"],
        ["--probs", "x"],
        ["--target", "x"],
        ["--split", "test"],
        ["--merge"],
        ["--group-by", "x"],
        ["--calibrate", "temperature"],
        ["--convention", "published"],
        ["--binary", "positive"],
        ["--class-names", "a,b"],
        ["--percent"],
        ["--drop-missing"],
        ["--ignore-index", "0"],
        ["--positive", "x"],
        ["--sql", "SELECT 1"],
        ["--boundary", "2"],
        ["--maps", "maps.png"],
    ],
)
def test_options_that_do_not_apply_are_refused_by_name(run, options):
    _, err = run("evaluate", LOGS, "--format", "lm-eval", *options, code=2)
    assert f"dualfocal: {options[0]} does not apply to --format lm-eval: " in err


def test_what_is_missing_is_said(run):
    _, err = run("evaluate", LOGS, "--choice-score", "sum", code=2)
    assert "--choice-score needs --format" in err
    _, err = run("evaluate", "--format", "lm-eval", code=2)
    assert "give logs or folders of logs" in err
    _, err = run("evaluate", "missing", "--format", "lm-eval", code=2)
    assert "missing: there is no such file or folder" in err
    _, err = run("evaluate", LOGS / "inspect_without_logprobs.json", "--format", "inspect", code=2)
    assert "--logprobs --top-logprobs 20" in err
