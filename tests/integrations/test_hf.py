"""The loss and the metrics for the Trainer of Hugging Face, with tiny models and without network."""

import os
import pickle
import re
import runpy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import metric_oracles
import numpy as np
import oracles
import pytest
import torch
from launch import meeting_place, start_pair, wait_for_end
from safetensors.torch import load_file
from torch import Tensor, nn

from dualfocal import AdaFocalLoss, CrossEntropyLoss, DualFocalLoss, MMCELoss, evaluate
from dualfocal.integrations import hf

os.environ["HF_HUB_OFFLINE"] = "1"
if os.environ.get("DUALFOCAL_INTEGRATIONS") != "required":  # in make test-integrations, a missing library is a failure
    pytest.importorskip("transformers", reason="make test-integrations installs it")
    pytest.importorskip("accelerate", reason="make test-integrations installs it")
import tiny_llama
from tiny_llama import GAMMA, LEARNING_RATE, STEPS, Rows, arguments, make_llama, sequences
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    EvalPrediction,
    Trainer,
)

ROOT = Path(__file__).parents[2]
SMALL = {"vocab_size": 13, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


# Training


def shifted_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of the oracle over all pairs of a position and its next token, unless that is -100."""
    rows, targets = [], []
    for sequence, tokens in zip(logits, labels, strict=True):
        for position in range(len(tokens) - 1):
            if tokens[position + 1] != -100:
                rows.append(sequence[position].double())
                targets.append(int(tokens[position + 1]))
    return oracles.dual_focal(torch.stack(rows), torch.tensor(targets), GAMMA).mean()


@pytest.fixture(scope="module")
def reference() -> dict[str, Tensor]:
    """Parameters after gradient descent on the oracle of all sequences, without Trainer."""
    model, data = make_llama(), sequences()
    for _ in range(STEPS):
        model.zero_grad()
        shifted_loss(model(data["input_ids"]).logits, data["labels"]).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= LEARNING_RATE * parameter.grad
    assert not torch.equal(model.lm_head.weight, make_llama().lm_head.weight)
    return {name: value.detach() for name, value in model.named_parameters()}


@pytest.mark.parametrize(("batch_size", "accumulation"), [(8, 1), (2, 4), (3, 3)])
def test_accumulated_batches_train_like_one_large_batch(tmp_path, reference, batch_size, accumulation):
    parameters = dict(tiny_llama.train(tmp_path, batch_size, accumulation).named_parameters())
    torch.testing.assert_close({name: value.detach() for name, value in parameters.items()}, reference)


def test_two_processes_train_like_one_large_batch(tmp_path, reference):
    store = meeting_place()
    processes = start_pair([tiny_llama.__file__, str(tmp_path), "2", "2"], store, (tmp_path, tmp_path))
    for code, _, err in wait_for_end(processes):
        assert code == 0, err
    for rank in range(2):
        torch.testing.assert_close(load_file(tmp_path / f"rank{rank}.safetensors"), reference)


def text(num_rows: int = 12, length: int = 5) -> Tensor:
    return torch.randint(SMALL["vocab_size"], (num_rows, length))


def evaluated(model: nn.Module, columns: dict[str, Tensor], folder: Path, **options: Any) -> dict[str, float]:
    """Metrics of Trainer.evaluate with batches of 5 rows."""
    trainer = Trainer(model, arguments(folder, per_device_eval_batch_size=5), eval_dataset=Rows(columns), **options)
    return trainer.evaluate()


def logits_of(model: nn.Module, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(tokens).logits


def test_sequence_classification_reports_loss_and_metrics(tmp_path):
    model = BertForSequenceClassification(BertConfig(**SMALL, num_labels=4))
    tokens, labels = text(), torch.arange(12) % 4
    metrics = evaluated(
        model,
        {"input_ids": tokens, "labels": labels},
        tmp_path,
        compute_loss_func=hf.loss_func(),
        compute_metrics=hf.compute_metrics,
    )
    logits = logits_of(model, tokens)
    oracle = oracles.dual_focal(logits.double(), labels, 5.0)
    # Trainer weights the mean loss of each batch by its number of rows.
    assert metrics["eval_loss"] == pytest.approx(float(oracle.mean()), rel=1e-5)
    expected = evaluate(logits, labels).scalars("eval_")
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", [BertForTokenClassification, BertForMaskedLM])
def test_labels_of_tokens_that_are_minus_100_do_not_count(tmp_path, kind):
    model = kind(BertConfig(**SMALL, num_labels=4))
    tokens = text(length=6)
    labels = torch.randint(4, tokens.shape)
    labels[:, 3:][tokens[:, 3:] % 2 == 0] = -100
    metrics = evaluated(
        model,
        {"input_ids": tokens, "labels": labels},
        tmp_path,
        compute_loss_func=hf.loss_func(CrossEntropyLoss()),
        compute_metrics=partial(hf.compute_metrics, num_bins=7),
    )
    keep = labels != -100
    logits, target = logits_of(model, tokens)[keep], labels[keep]
    probs = logits.double().softmax(1).tolist()
    assert metrics["eval_nll"] == pytest.approx(metric_oracles.nll(probs, target.tolist()), rel=1e-5)
    confidence, correct = metric_oracles.top_label(probs, target.tolist())
    ece = metric_oracles.ece(confidence, correct, metric_oracles.equal_width(7))
    assert metrics["eval_ece"] == pytest.approx(ece, rel=1e-4)
    batches = [(logits_of(model, tokens)[i : i + 5], labels[i : i + 5]) for i in range(0, 12, 5)]
    means = [nn.functional.cross_entropy(z.flatten(0, 1), y.flatten()) for z, y in batches]
    weighted = sum(float(mean) * len(y) for mean, (_, y) in zip(means, batches, strict=True)) / 12
    assert metrics["eval_loss"] == pytest.approx(weighted, rel=1e-5)


def test_language_models_are_evaluated_without_keeping_their_logits(tmp_path):
    model, data = make_llama(), sequences()
    metrics = evaluated(
        model,
        data,
        tmp_path,
        compute_loss_func=hf.loss_func(task="causal_lm"),
        compute_metrics=partial(hf.compute_lm_metrics, inference=True),
        preprocess_logits_for_metrics=hf.lm_statistics,
    )
    keep = data["labels"][:, 1:] != -100
    logits, target = logits_of(model, data["input_ids"])[:, :-1][keep], data["labels"][:, 1:][keep]
    expected = evaluate(logits, target, inference=True).scalars("eval_")
    for name in ("eval_classwise_ece", "eval_classwise_ece_floor", "eval_classwise_p_value"):
        del expected[name]
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4)


# The function alone


@pytest.fixture
def batch() -> SimpleNamespace:
    return SimpleNamespace(logits=torch.randn(6, 3), labels=torch.tensor([0, 2, -100, 1, 1, 0]))


def test_without_a_count_the_loss_is_the_mean_over_the_labels_of_the_batch(batch):
    mean = CrossEntropyLoss()(batch.logits, batch.labels)
    assert torch.equal(hf.loss_func(CrossEntropyLoss())({"logits": batch.logits}, batch.labels), mean)
    assert torch.equal(hf.loss_func(nn.CrossEntropyLoss())((batch.logits, None), batch.labels), mean)
    ignored = torch.full_like(batch.labels, -100)
    assert hf.loss_func()(batch, ignored) == 0


@pytest.mark.parametrize("count", [0, torch.tensor(0)])
def test_a_step_without_labels_changes_nothing(batch, count):
    logits = batch.logits.requires_grad_()
    loss = hf.loss_func()({"logits": logits}, torch.full_like(batch.labels, -100), num_items_in_batch=count)
    loss.backward()
    assert loss == 0
    assert torch.equal(logits.grad, torch.zeros(6, 3))


def test_class_weights_weight_the_sum_but_not_the_count(batch):
    weight = torch.tensor([1.0, 5.0, 0.5])
    for criterion in (CrossEntropyLoss(weight=weight), nn.CrossEntropyLoss(weight=weight)):
        loss = hf.loss_func(criterion)(batch, batch.labels, num_items_in_batch=torch.tensor(10))
        rows = nn.functional.cross_entropy(batch.logits, batch.labels, reduction="none")
        weights = [1.0, 0.5, 0.0, 5.0, 5.0, 1.0]
        assert float(loss) == pytest.approx(float((rows * torch.tensor(weights)).sum()) / 10, rel=1e-6)


def test_class_probabilities_are_counted_by_rows(batch):
    probs = torch.randn(6, 3).softmax(1)
    mean = nn.functional.cross_entropy(batch.logits, probs)
    compute_loss = hf.loss_func(CrossEntropyLoss())
    torch.testing.assert_close(compute_loss(batch, probs), mean)
    torch.testing.assert_close(compute_loss(batch, probs, num_items_in_batch=probs.ne(-100).sum()), mean)


def test_under_data_parallel_the_loss_is_that_of_one_device(batch):
    # Trainer passes one copy of the count per GPU, multiplies by the number of GPUs, and takes the mean.
    compute_loss = hf.loss_func()
    copies = torch.tensor(5).unsqueeze(0).expand(2, -1)
    torch.testing.assert_close(
        (2 * compute_loss(batch, batch.labels, copies)).mean(), compute_loss(batch, batch.labels)
    )


def test_the_loss_can_be_pickled_and_leaves_the_criterion_as_it_was(batch):
    criterion = DualFocalLoss(gamma=2.0, weight=[1.0, 2.0, 3.0])
    compute_loss = hf.loss_func(criterion)
    copied = pickle.loads(pickle.dumps(compute_loss))
    assert torch.equal(copied(batch, batch.labels), compute_loss(batch, batch.labels))
    assert criterion.reduction == "mean"


def test_updates_of_an_adaptive_criterion_reach_the_loss(batch):
    criterion = AdaFocalLoss(num_bins=2)
    compute_loss = hf.loss_func(criterion)
    before = compute_loss(batch, batch.labels)
    criterion.update(10 * batch.logits, batch.labels)
    after = compute_loss(batch, batch.labels)
    assert after != before
    torch.testing.assert_close(after, criterion(batch.logits, batch.labels))


def test_a_loss_of_the_whole_batch_is_weighted_by_the_labels_of_its_batch(batch):
    criterion = MMCELoss()
    loss = hf.loss_func(criterion)(batch, batch.labels, num_items_in_batch=20)
    torch.testing.assert_close(loss, criterion(batch.logits, batch.labels) * 5 / 20)


@pytest.mark.parametrize(
    ("criterion", "message"),
    [
        (DualFocalLoss(reduction="sum"), "reduction=\"mean\", got 'sum'"),
        (DualFocalLoss(ignore_index=0), "ignore_index=-100, got 0"),
        (DualFocalLoss(gamma=nn.Parameter(torch.tensor(2.0))), "must not have parameters, got gamma"),
        (nn.BCEWithLogitsLoss(), "got BCEWithLogitsLoss"),
    ],
)
def test_a_criterion_with_other_rules_is_an_error(criterion, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        hf.loss_func(criterion)


@pytest.mark.parametrize("criterion", [DualFocalLoss, nn.functional.cross_entropy, nn.Linear(2, 2)])
def test_a_criterion_that_is_no_loss_module_is_an_error(criterion):
    with pytest.raises(TypeError, match=r"such as DualFocalLoss\(\)"):
        hf.loss_func(criterion)


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        ((6, 3), None, 'column "labels"'),
        ((6, 3), None, "labels that are texts are dropped by the data collator, so number the classes"),
        ((6, 1), torch.zeros(6), "num_labels=2"),
        ((6, 3), torch.tensor([[1.0, 1.0, 0.0]] * 6), "no rival p_j"),
        ((6, 3), torch.eye(3, dtype=torch.int64).repeat(2, 1), "labels.argmax(-1)"),
        ((6, 4, 3), torch.zeros(6, 3, dtype=torch.int64), "shape (6, 4)"),
        ((6,), torch.zeros(6, dtype=torch.int64), "shape (..., C), got (6,)"),
    ],
)
def test_labels_that_do_not_fit_are_an_error_with_a_remedy(logits, labels, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        hf.loss_func()({"logits": torch.zeros(logits)}, labels)


def test_outputs_of_another_task_are_an_error():
    data = sequences()
    with pytest.raises(ValueError, match=r'use loss_func.*task="causal_lm"'):
        hf.loss_func()(make_llama()(data["input_ids"]), data["labels"])
    model = BertForTokenClassification(BertConfig(**SMALL, num_labels=4))
    with pytest.raises(ValueError, match='task="classification"'):
        hf.loss_func(task="causal_lm")(model(text()), text())
    with pytest.raises(ValueError, match="must have logits, but they are hidden"):
        hf.loss_func()({"hidden": text()}, text())


def test_the_warning_about_two_classes_stays(warn_again):
    warn_again()
    with pytest.warns(UserWarning, match="two classes"):
        hf.loss_func()({"logits": torch.zeros(4, 2)}, torch.tensor([0, 1, 0, 1]))


# The metrics alone


def test_metrics_of_arrays_tuples_and_lists_of_batches_agree():
    logits, labels = np.random.default_rng(0).normal(size=(20, 4, 3)), np.arange(80).reshape(20, 4) % 3
    labels[:3, 1] = -100
    expected = hf.compute_metrics(EvalPrediction(logits, labels), inference=True)
    assert expected["ece_floor"] > 0
    assert all(type(value) is float for value in expected.values())
    with_hidden = EvalPrediction((logits, np.zeros((20, 8))), labels)
    assert hf.compute_metrics(with_hidden, inference=True) == expected
    assert hf.compute_metrics((logits, labels), inference=True) == expected
    batches = EvalPrediction(
        [logits[:15], logits[15:, :2], logits[15:, 2:]], [labels[:15], labels[15:, :2], labels[15:, 2:]]
    )
    assert hf.compute_metrics(batches)["nll"] == pytest.approx(expected["nll"])


@pytest.mark.parametrize(
    ("predictions", "labels", "message"),
    [
        (np.zeros((4, 3)), None, 'column "labels"'),
        (np.zeros((4, 3)), np.eye(4, 3), "labels.argmax(-1)"),
        (np.zeros((4, 3)), np.zeros((4, 3), int), "task='multilabel'"),
        (np.zeros(4), np.zeros(4), "predictions of shape (4,)"),
        (np.full((4, 3), 1 / 3), np.zeros(4, int), "must not be probabilities"),
        (np.zeros((4, 3)), np.full(4, -100), "every target is ignore_index = -100"),
    ],
)
def test_predictions_that_do_not_fit_are_an_error_with_a_remedy(predictions, labels, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        hf.compute_metrics(EvalPrediction(predictions, labels))


def test_language_model_metrics_need_the_statistics():
    logits, labels = np.zeros((2, 3, 5)), np.zeros((2, 3), int)
    with pytest.raises(ValueError, match="preprocess_logits_for_metrics=lm_statistics"):
        hf.compute_lm_metrics(EvalPrediction(logits, labels))
    statistics = hf.lm_statistics(torch.zeros(2, 3, 5), torch.full((2, 3), -100))
    with pytest.raises(ValueError, match="all are -100"):
        hf.compute_lm_metrics(EvalPrediction(statistics, labels))
    with pytest.raises(ValueError, match=re.escape("(N, T, V)")):
        hf.lm_statistics(torch.zeros(2, 5), torch.zeros(2))
    assert hf.lm_statistics(torch.zeros(0, 3, 5), torch.zeros(0, 3).long()).shape == (0, 3, 4)


# The example


@pytest.mark.filterwarnings("ignore:.*pin_memory")
def test_in_the_example_dual_focal_is_better_calibrated_than_cross_entropy(capsys):
    runpy.run_path(str(ROOT / "examples" / "finetune_text.py"), run_name="__main__")
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("CrossEntropyLoss ")
    assert second.startswith("DualFocalLoss ")
    cross_entropy, dual_focal = (float(re.search(r"ECE (\S+)%", line)[1]) for line in (first, second))
    assert dual_focal < cross_entropy / 2
