"""Multiple-choice questions, against loops over the questions."""

import math

import numpy as np
import pytest

from dualfocal.metrics import Choices, evaluate, evaluate_choices, evaluate_tasks


def questions(seed: int, low: int = 2, high: int = 6, n: int = 60) -> tuple[list[list[float]], list[int]]:
    rng = np.random.default_rng(seed)
    scores = [(3 * rng.normal(size=rng.integers(low, high + 1))).tolist() for _ in range(n)]
    return scores, [int(rng.integers(len(options))) for options in scores]


def choices(scores: list[list[float]], right: list[int], clusters: list[int] | None = None) -> Choices:
    flat = [score for options in scores for score in options]
    return Choices(flat, [len(options) for options in scores], right, None if clusters is None else np.array(clusters))


def loop(scores: list[list[float]], right: list[int]) -> dict[str, list[float]]:
    """Confidence, correctness, NLL and Brier score of each question, one option after the other."""
    result: dict[str, list[float]] = {"confidence": [], "correct": [], "nll": [], "brier": []}
    for options, k in zip(scores, right, strict=True):
        total = math.fsum(math.exp(score) for score in options)
        probs = [math.exp(score) / total for score in options]
        result["confidence"].append(max(probs))
        result["correct"].append(float(options.index(max(options)) == k))
        result["nll"].append(-math.log(probs[k]))
        result["brier"].append(sum((p - (i == k)) ** 2 for i, p in enumerate(probs)))
    return result


def test_scores_of_ragged_questions_equal_a_loop():
    scores, right = questions(0)
    result, expected = evaluate_choices(choices(scores, right)), loop(scores, right)
    assert result.num_options == (2, 6)
    assert result.positions == ()
    evaluation = result.evaluation
    assert evaluation.nll == pytest.approx(np.mean(expected["nll"]))
    assert evaluation.brier == pytest.approx(np.mean(expected["brier"]))
    assert evaluation.error == pytest.approx(1 - np.mean(expected["correct"]))
    assert evaluation.confidence == pytest.approx(np.mean(expected["confidence"]))
    order = np.argsort(expected["confidence"])[::-1]
    hits = np.array(expected["correct"])[order]
    assert evaluation.aurc == pytest.approx(np.mean(1 - hits.cumsum() / np.arange(1, 61)))
    assert result.selective_accuracy == pytest.approx(
        {0.8: hits[:48].mean(), 0.9: hits[:54].mean(), 0.95: hits[:57].mean()}
    )


def test_equal_numbers_of_options_give_the_evaluation_of_a_matrix():
    scores, right = questions(1, 4, 4)
    result = evaluate_choices(choices(scores, right), inference=True)
    assert result.evaluation.to_dict() == evaluate(np.array(scores), np.array(right), inference=True).to_dict()
    ragged = choices([*scores, [0.0, -1.0]], [*right, 0])
    assert ragged.nll() == pytest.approx((60 * result.evaluation.nll + math.log1p(math.exp(-1))) / 61)


def test_results_are_printed_as_tables():
    for low, title, rest in ((2, "60 questions, 2 to 6 options", ""), (6, "60 questions, 6 options", "position")):
        scores, right = questions(0, low)
        result = evaluate_choices(choices(scores, right), inference=bool(rest))
        lines = str(result).splitlines()
        assert lines[0] == title
        assert "nan" not in str(result)
        assert f"{100 * result.selective_accuracy[0.8]:.2f}" in str(result)
        assert (f"{100 * result.positions[0].chosen:.1f}" if rest else "") in str(result)
        assert (result.verdict() if rest else "") in lines[-1]


def test_position_bias_is_found_and_named():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(800, 4))
    right = np.array([rng.choice(4, p=np.exp(row) / np.exp(row).sum()) for row in scores])
    fair = evaluate_choices(choices(scores.tolist(), right.tolist()), inference=True)
    assert "Class probabilities: no miscalibration detectable" in fair.verdict()
    biased = evaluate_choices(choices((scores + np.array([0.8, 0, 0, 0])).tolist(), right.tolist()), inference=True)
    assert "Class probabilities: miscalibrated (p < 0.001)" in biased.verdict()
    first = biased.positions[0]
    assert first.name == "A"
    assert first.right == np.mean(right == 0)
    assert first.chosen > first.right + 0.1
    assert first.probability > first.right + 0.1
    assert sum(position.chosen for position in biased.positions) == pytest.approx(1)


def test_positions_are_not_evaluated_if_they_give_the_answer():
    scores, _ = questions(2, 4, 4)
    result = evaluate_choices(choices(scores, [0] * 60), inference=True)
    assert result.positions == ()
    assert result.evaluation.inference.classwise is None
    assert "Class probabilities" not in result.verdict()
    assert result.evaluation.nll == pytest.approx(np.mean(loop(scores, [0] * 60)["nll"]))


def test_p_values_are_adjusted_for_the_tasks():
    rng = np.random.default_rng(0)
    tasks = {}
    for i in range(3):
        scores, _ = questions(i, 3, 3, 100)
        right = [int(rng.choice(3, p=np.exp(options) / np.exp(options).sum())) for options in np.array(scores)]
        tasks[f"t{i}"] = choices(scores, right)  # calibrated: p-values are not tiny
    overall, results = evaluate_tasks(tasks, inference=True)
    raw = {name: result.evaluation.inference.joint_p_value for name, result in results.items()}
    smallest = min(raw, key=raw.get)
    assert raw[smallest] > 0.01
    assert results[smallest].p_adjusted == pytest.approx(min(1, 3 * raw[smallest]))
    assert all(results[name].p_adjusted >= p for name, p in raw.items())
    assert overall.evaluation.num_samples == 300
    assert overall.p_adjusted is None


def test_clusters_of_one_task_do_not_join_those_of_another():
    a, b = questions(0, n=4), questions(1, n=3)
    overall, _ = evaluate_tasks(
        {"a": choices(*a, clusters=[5, 5, 9, 9]), "b": choices(*b, clusters=[5, 9, 9])}, inference=True
    )
    assert overall.evaluation.inference.clusters.number == 4
    overall, _ = evaluate_tasks({"a": choices(*a, clusters=[5, 5, 9, 9]), "b": choices(*b)}, inference=True)
    assert overall.evaluation.inference.clusters.number == 5  # a question without a cluster is its own
    overall, _ = evaluate_tasks({"a": choices(*a), "b": choices(*b)}, inference=True)
    assert overall.evaluation.inference.clusters is None


def test_clusters_reach_the_inference():
    scores, right = questions(3, 3, 3, 50)
    copies = choices(scores * 4, right * 4, list(range(50)) * 4)
    result = evaluate_choices(copies, inference=True)
    assert result.evaluation.inference.clusters.number == 50
    assert "50 clusters" in result.verdict()


def test_huge_and_infinite_scores():
    extreme = choices([[-1e300, 0.0], [-math.inf, -5.0, -5.0]], [1, 1])
    assert extreme.probs().tolist() == [0, 1, 0, 0.5, 0.5]
    assert extreme.chosen.tolist() == [1, 1]
    assert extreme.nll() == pytest.approx(math.log(2) / 2)
    assert choices([[-math.inf, 0.0]], [0]).nll() == math.inf


@pytest.mark.parametrize(
    ("scores", "number", "right", "message"),
    [
        ([], [], [], "no questions"),
        ([0.0], [1], [0], "at least 2 options, got 1"),
        ([0.0, 1.0, 2.0], [2], [0], "add up to 2"),
        ([0.0, 1.0], [2], [2], "index of an option"),
        ([0.0, 1.0], [2], [-1], "index of an option"),
        ([math.nan, 1.0], [2], [0], "NaN"),
        ([math.inf, 1.0], [2], [0], "inf"),
        ([-math.inf, -math.inf], [2], [0], "finite"),
    ],
)
def test_bad_questions_are_refused(scores, number, right, message):
    with pytest.raises(ValueError, match=message):
        Choices(scores, number, right)
