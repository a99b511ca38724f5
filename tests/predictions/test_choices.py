"""Logs of lm-evaluation-harness and inspect_ai; those of logs/ were written by the harnesses."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from dualfocal.metrics import evaluate_tasks
from dualfocal.predictions import PredictionsError, load_choices

LOGS = Path(__file__).parent / "logs"
INSPECT = LOGS / "inspect_colours.json"


def line(doc_id: object = 0, log_probs: tuple[float, ...] = (-1.0, -2.0, -3.0), **changes: object) -> dict:
    texts = [f" option {i}" for i in range(len(log_probs))]
    return {
        "doc_id": doc_id,
        "doc": {"question": "?"},
        "target": "0",
        "arguments": {f"gen_args_{i}": {"arg_0": "Q", "arg_1": text} for i, text in enumerate(texts)},
        "filtered_resps": [[str(value), "False"] for value in log_probs],
        "filter": "none",
        "acc": 1.0,
    } | changes


@pytest.fixture
def log(tmp_path):
    def write(*lines: dict, name: str = "samples_my_task_2026-01-02T03-04-05.678.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
        return path

    return write


def load(path: Path, **options: object):
    (result,) = load_choices(path, format="lm-eval", **options)
    return result


def test_our_accuracy_is_the_one_that_the_harness_recorded():
    logs = {log.task: log for log in load_choices(LOGS, format="lm-eval")}
    assert list(logs) == ["tiny_letters", "tiny_passages", "tiny_wino"]
    passages = logs["tiny_passages"]
    assert {s: passages.disagreement(s) for s in ("sum", "per-char", "per-byte", "mutual-info")} == {
        "sum": (12, 0),
        "per-char": (12, 0),
        "per-byte": (12, 0),
        "mutual-info": (12, 0),
    }
    accuracies = {s: (c.chosen == c.right).mean() for s in ("sum", "per-char") if (c := passages.choices(s))}
    assert accuracies == pytest.approx({"sum": 2 / 12, "per-char": 4 / 12})  # printed by the harness
    assert logs["tiny_letters"].disagreement("per-char") == (8, 0)
    assert logs["tiny_letters"].choices().brier() == pytest.approx(1.3866229114000066)  # its brier_score
    assert logs["tiny_wino"].disagreement("sum") == (6, 0)
    answers = [json.loads(text)["doc"]["answer"] for text in logs["tiny_wino"].path.read_text().splitlines()]
    assert logs["tiny_wino"].right.tolist() == answers


def test_the_floors_of_confidences_of_1_are_finite():
    logs = {log.task: log.choices() for log in load_choices(LOGS, format="lm-eval")}
    overall, _ = evaluate_tasks(logs, inference=True)  # warnings are errors: no bin may be empty
    assert all(math.isfinite(floor.mean) for floor in overall.evaluation.inference.floors.values())


def test_lengths_are_those_of_the_options_without_the_delimiter():
    (passages,) = load_choices(next(LOGS.glob("samples_tiny_passages*")), format="lm-eval")
    docs = [json.loads(text)["doc"] for text in passages.path.read_text().splitlines()]
    options = [option for doc in docs for option in doc["options"]]
    assert passages.lengths["per-char"].tolist() == [len(option) for option in options]
    assert passages.lengths["per-byte"].tolist() == [len(option.encode()) for option in options]
    assert passages.num_options.tolist() == [len(doc["options"]) for doc in docs]


def test_a_wrong_accuracy_is_counted(log):
    path = log(line(0), line(1, acc=0.0), line(2, acc=0.5), line(3, (-5.0, -1.0)))
    assert load(path).disagreement() == (4, 3)
    assert load(path).disagreement("per-char") == (0, 0)


@pytest.mark.parametrize(
    "resps",
    [
        [[-1.0, False], [-2.0, False], [-3.0, True]],
        ["(-1.0, False)", "(-2.0, False)", "(-3.0, True)"],
        [[["-1.0", "False"]], [["-2.0", "False"]], [["-3.0", "True"]]],
    ],
)
def test_forms_of_other_versions(log, resps):
    old = line(filtered_resps=resps, arguments=[["Q", " a"], ["Q", " bc"], ["Q", " d"]])
    result = load(log(old))
    assert result.log_probs.tolist() == [-1, -2, -3]
    assert result.lengths["per-char"].tolist() == [1, 2, 1]
    assert result.task == "my_task"


@pytest.mark.parametrize(
    ("target", "right"),
    [("1", 1), (1, 1), ("[2]", 2), ([0], 0), ("option 1", 1), (" option 2 ", 2)],
)
def test_forms_of_the_right_option(log, target, right):
    assert load(log(line(target=target))).right.tolist() == [right]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("[0, 2]", "several right options"),
        ("[]", "not known"),
        ("3", "not known"),
        (-1, "not known"),
        (True, "not known"),
        ("x", "not known"),
        (None, "not known"),
    ],
)
def test_questions_without_one_right_option_are_left_out(log, target, reason):
    result = load(log(line(0), line(1, target=target)))
    assert len(result.right) == 1
    ((text, number),) = result.left_out.items()
    assert reason in text
    assert number == 1
    with pytest.raises(PredictionsError, match=f"no question can be used: 1 x .*{reason}"):
        load(log(line(0, target=target)))


def test_clusters_by_usual_names_by_path_and_none(log):
    docs = [{"passage": f"p{i // 2}", "idx": {"book": i % 3}} for i in range(6)]
    path = log(*(line(i, doc=doc) for i, doc in enumerate(docs)))
    assert load(path).clusters.tolist() == [0, 0, 1, 1, 2, 2]
    assert load(path).cluster_name == "passage"
    assert load(path, cluster="idx.book").clusters.tolist() == [0, 1, 2, 0, 1, 2]
    assert load(path, cluster="none").clusters is None
    with pytest.raises(
        PredictionsError, match=r"line 1: --cluster book: doc has no such field \(it has: 'passage', 'idx'\)"
    ):
        load(path, cluster="book")
    distinct = log(*(line(i, doc={"passage": i}) for i in range(3)))
    assert load(distinct).clusters is None
    partly = log(line(0, doc={"passage": 1}), line(1, doc={"passage": 1}), line(2))
    assert load(partly).clusters is None


def test_only_the_first_filter_is_read(log):
    result = load(log(line(0), line(0, filter="other"), line(1)))
    assert result.doc_ids == ("0", "1")
    assert "several filters" in result.remarks[0]


def test_other_tasks_of_a_folder_are_skipped_but_not_if_named(log, tmp_path):
    log(line(0))
    text = log(line(filtered_resps=["some text"]), name="samples_story.jsonl")
    assert [result.task for result in load_choices(tmp_path, format="lm-eval")] == ["my_task"]
    with pytest.raises(PredictionsError, match="only tasks with output_type multiple_choice"):
        load(text)


def test_scores_that_a_log_does_not_have(log):
    with pytest.raises(PredictionsError, match="add acc_mutual_info to metric_list"):
        load(log(line())).choices("mutual-info")
    empty = line(arguments=[["Q", " a"], ["Q", " "], ["Q", " b"]])
    with pytest.raises(PredictionsError, match="document 0 has an empty option"):
        load(log(empty)).choices("per-char")
    with pytest.raises(ValueError, match="--choice-score"):
        load(log(line())).choices("per-token")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"filtered_resps": 3}, "filtered_resps must be a list"),
        ({"filtered_resps": [["-1", "False"]]}, "3 arguments, but 1 filtered_resps"),
        ({"filtered_resps": [["nan", "False"]] * 3}, "must be at most 0, got nan"),
        ({"filtered_resps": [["3.0", "False"]] * 3}, "must be at most 0, got 3.0"),
        ({"filtered_resps": [["-inf", "False"]] * 3}, "all options are -inf"),
        ({"arguments": {"a": 1}}, "arguments must be pairs"),
        ({"acc": "yes"}, "accuracy of sum must be a number"),
    ],
)
def test_bad_lines_are_named(log, change, message):
    with pytest.raises(PredictionsError, match=message) as error:
        load(log(line(0), line(1, **change)))
    assert "line 2" in str(error.value)


def test_logs_that_are_none(log, tmp_path):
    with pytest.raises(PredictionsError, match="--log_samples"):
        load(log({"a": 1}))
    with pytest.raises(PredictionsError, match="line 2: document 0 occurs more than once"):
        load(log(line(0), line(0)))
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(PredictionsError, match="--log_samples"):
        load(tmp_path / "results.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PredictionsError, match=r"has no files samples_\*.jsonl: .*--log_samples"):
        load(tmp_path / "empty")
    first = log(line(0))
    (tmp_path / "b").mkdir()
    shutil.copy(first, tmp_path / "b")
    with pytest.raises(PredictionsError, match="task 'my_task' was also read from"):
        load_choices([first, tmp_path / "b"], format="lm-eval")


# inspect_ai


def samples() -> dict:
    return json.loads(INSPECT.read_text())


@pytest.fixture
def inspect(tmp_path):
    def write(content: dict):
        path = tmp_path / "log.json"
        path.write_text(json.dumps(content))
        (result,) = load_choices(path, format="inspect")
        return result

    return write


def test_both_files_of_inspect_are_read_and_agree_with_its_score():
    logs = [load_choices(LOGS / f"inspect_colours.{suffix}", format="inspect")[0] for suffix in ("json", "eval")]
    for log in logs:
        assert log.task == "colours"
        assert log.disagreement() == (10, 0)
        assert log.num_options.tolist() == [3, 4] * 5
        assert log.cluster_name == "passage"
    assert logs[0].log_probs.tolist() == logs[1].log_probs.tolist()
    # The mock model gave the letters a mass of exp(-0.05).
    sums = np.add.reduceat(np.exp(logs[0].log_probs), np.cumsum(logs[0].num_options) - logs[0].num_options)
    assert sums == pytest.approx(math.exp(-0.05))
    with pytest.raises(PredictionsError, match="per-char does not apply to logs of inspect_ai"):
        logs[0].choices("per-char")


def test_the_error_names_the_option_that_records_log_probs(inspect):
    with pytest.raises(PredictionsError, match="--logprobs --top-logprobs 20"):
        load_choices(LOGS / "inspect_without_logprobs.json", format="inspect")
    content = samples()
    for sample in content["samples"]:
        for token in sample["output"]["choices"][0]["logprobs"]["content"]:
            token["top_logprobs"] = None
    with pytest.raises(PredictionsError, match="--top-logprobs 20"):
        inspect(content)


def tokens(content: dict, i: int = 0) -> list[dict]:
    return content["samples"][i]["output"]["choices"][0]["logprobs"]["content"]


def test_two_tokens_of_a_letter_are_added(inspect):
    content, before = samples(), inspect(samples()).log_probs
    letter = tokens(content)[-1]["top_logprobs"][1]
    tokens(content)[-1]["top_logprobs"].append({"token": letter["token"].strip(), "logprob": letter["logprob"]})
    difference = inspect(content).log_probs - before
    assert sorted(difference[:3]) == pytest.approx([0, 0, math.log(2)])
    assert not difference[3:].any()


def test_an_option_that_was_not_recorded_counts_as_the_lowest_one(inspect):
    content = samples()
    kept = tokens(content)[-1]["top_logprobs"][:1] + tokens(content)[-1]["top_logprobs"][-1:]
    tokens(content)[-1]["top_logprobs"] = kept
    result = inspect(content)
    assert sorted(result.log_probs[:3])[:2] == [-5.0, -5.0]
    assert "1 question lacks" in result.remarks[0]


def test_questions_without_a_usable_answer_are_left_out(inspect):
    content = samples()
    tokens(content, 0)[-1]["token"] = " none"
    content["samples"][1]["output"]["completion"] = "ANSWER: " + (
        "A" if "C" in tokens(content, 1)[-1]["token"] else "C"
    )
    content["samples"][2]["target"] = ["A", "B"]
    content["samples"][3]["choices"] = None
    result = inspect(content)
    assert len(result.right) == 6
    reasons = " ".join(result.left_out)
    assert all(text in reasons for text in ("ANSWER: LETTER", "shuffle_choices", "several right", "fewer than 2"))


def test_an_answer_of_one_letter_needs_no_marker(inspect):
    content = samples()
    content["samples"] = content["samples"][:1]
    output = content["samples"][0]["output"]
    output["choices"][0]["logprobs"]["content"] = tokens(content)[-1:]
    output["completion"] = "C"
    assert inspect(content).log_probs.tolist() == inspect(samples()).log_probs[:3].tolist()


def test_epochs_of_a_question_are_a_cluster(inspect):
    content = samples()
    for sample in content["samples"]:
        del sample["metadata"]["passage"]
    content["samples"] += json.loads(json.dumps(content["samples"]))
    result = inspect(content)
    assert result.clusters.tolist() == [*range(10), *range(10)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eval": {}}, "no eval.task"),
        ({"samples": None}, "has no samples"),
        ({"samples": [3]}, "sample 1 must be an object"),
        ({"samples": [{"id": 1}]}, "sample 1 is not as inspect_ai writes it"),
    ],
)
def test_bad_inspect_logs_are_named(inspect, change, message):
    with pytest.raises(PredictionsError, match=message):
        inspect(samples() | change)
