"""Next-token calibration of a causal language model that needs no transformers."""

from collections.abc import Iterator

import pytest
import torch
from causal_lms import VOCABULARY, SmallLM, oracle, padded, texts
from torch import Tensor, nn

from dualfocal.calibrators import TemperatureScaling
from dualfocal.integrations.hf import count_tokens, evaluate_causal_lm, scan_causal_lm
from dualfocal.metrics import TokenConfidences, TokenEvaluation, evaluate

COUNTS = torch.randint(0, 300, (VOCABULARY,), generator=torch.Generator().manual_seed(9))


@pytest.fixture
def model() -> SmallLM:
    torch.manual_seed(0)
    return SmallLM()


def expected_state(numbers: list[tuple[float, ...]], names: list[str] | None = None) -> TokenConfidences:
    """The state of an oracle's numbers; sequence i has the name that a scan gives it, or names[i]."""
    state = TokenConfidences(COUNTS)
    confidence, right, nll, brier, predicted, position, number = torch.tensor(numbers, dtype=torch.float64).T
    state.update(
        confidence,
        right.bool(),
        nll=nll,
        brier=brier,
        predicted=predicted.long(),
        position=position.long(),
        sequence=[f"0:{i}" if names is None else names[i] for i in number.long().tolist()],
    )
    return state


def check_equal(state: TokenConfidences, numbers: list[tuple[float, ...]], names: list[str] | None = None) -> None:
    """Compare all counts exactly, and scores up to rounding."""
    expected = expected_state(numbers, names)
    for kind in ("by_position", "by_frequency"):
        got, wanted = getattr(state, kind), getattr(expected, kind)
        assert got.keys() == wanted.keys()
        for group in got:
            assert got[group].top.count.tolist() == wanted[group].top.count.tolist()
            assert got[group].top.correct.tolist() == wanted[group].top.correct.tolist()
            assert got[group].clusters.names == wanted[group].clusters.names
    result, reference = (x.total.evaluate(inference=False) for x in (state, expected))
    for name in ("nll", "brier", "ece", "mce", "aurc", "debiased_ece"):
        assert getattr(result, name) == pytest.approx(getattr(reference, name), rel=1e-4), name


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("head", ["hidden", "logits"])
def test_padding_on_both_sides_equals_sequences_alone(model, side, head) -> None:
    sequences = texts()
    batches = [padded(sequences[i : i + 5], side) for i in range(0, len(sequences), 5)]
    check_equal(scan_causal_lm(model, batches, token_counts=COUNTS, head=head), oracle(model, sequences))


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 1000])
def test_slices_of_any_size_give_the_same_counts(model, chunk_size) -> None:
    sequences = texts()
    state = scan_causal_lm(model, [padded(sequences, "right")], token_counts=COUNTS, chunk_size=chunk_size)
    rows = model.head.rows[3:]  # the first three calls are the check of 8 tokens
    assert max(rows) <= chunk_size
    assert sum(rows) == state.num_tokens
    check_equal(state, oracle(model, sequences))


def test_default_slices_are_bounded(model, monkeypatch) -> None:
    monkeypatch.setattr("dualfocal.integrations.hf.causal_lm.CHUNK_BYTES", 4 * VOCABULARY * 16)
    scan_causal_lm(model, [torch.randint(VOCABULARY, (50, 40))])
    assert max(model.head.rows) == 16
    assert sum(model.head.rows[3:]) == 50 * 39


def test_ignored_labels_are_not_predicted_but_count_as_context(model) -> None:
    sequences = texts()
    labels = [tokens.clone() for tokens in sequences]
    for i, row in enumerate(labels):
        row[: i % 4] = -100  # a prompt
    batch = padded(sequences, "right")
    batch["labels"] = padded(labels, "right", -100)["input_ids"]
    numbers = [row for row in oracle(model, sequences) if labels[int(row[6])][int(row[5])] != -100]
    check_equal(scan_causal_lm(model, [batch], token_counts=COUNTS), numbers)


def test_packed_sequences_are_clusters_and_do_not_predict_each_other(model) -> None:
    tokens = torch.randint(VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    ids = torch.tensor([[7, 7, 7, 4, 4, 4, 4, 9, 9], [9, 9, 9, 9, 5, 5, 5, 6, 6]])
    state = scan_causal_lm(model, [{"input_ids": tokens, "sequence_ids": ids}])
    assert state.total.clusters.names == {4, 5, 6, 7, 9}
    assert {2**k: group.num_samples for k, group in sorted(state.by_position.items())} == {1: 6, 2: 6}
    assert state.shards == set()
    by_row = scan_causal_lm(model, [{"input_ids": tokens, "sequence_ids": ["a", "b"]}])
    assert by_row.total.clusters.names == {"a", "b"}
    assert by_row.num_tokens == 16


def test_shards_merge_to_the_whole(model) -> None:
    sequences = texts()
    ids = list(range(len(sequences)))
    whole = scan_causal_lm(model, [padded(sequences, "left") | {"sequence_ids": ids}], token_counts=COUNTS)
    first, second = (
        scan_causal_lm(model, [padded(sequences[part], "left") | {"sequence_ids": ids[part]}], token_counts=COUNTS)
        for part in (slice(0, 10), slice(10, None))
    )
    for name in ("count", "confidence", "correct", "variance"):
        sums = [getattr(state.total.top, name) for state in (second + first, whole)]
        assert sums[0] == pytest.approx(sums[1], rel=1e-5, abs=1e-5)  # other shapes, other roundings of the model
    numbered = [scan_causal_lm(model, sequences[:9], shard=rank) for rank in (0, 1)]
    assert (numbered[0] + numbered[1]).num_sequences == 18
    with pytest.raises(ValueError, match=r"shard '0'.*another shard, or sequence_ids"):
        numbered[0] + numbered[0]


def test_calibrator_changes_logits_before_they_are_counted(model) -> None:
    sequences = texts()
    calibrator = TemperatureScaling()
    calibrator.fit(torch.randn(200, VOCABULARY), torch.randint(VOCABULARY, (200,)))
    calibrator.temperature.fill_(2.5)
    state = scan_causal_lm(model, sequences, token_counts=COUNTS, calibrator=calibrator)
    check_equal(state, oracle(model, sequences, temperature=2.5))


def test_bfloat16_model_equals_its_own_logits(model) -> None:
    sequences = texts()
    model = model.bfloat16()
    check_equal(scan_causal_lm(model, sequences, token_counts=COUNTS, head="logits"), oracle(model, sequences))
    result = scan_causal_lm(model, sequences).total.evaluate(inference=False)
    confidence, right = torch.tensor(oracle(model, sequences))[:, :2].T
    reference = evaluate(confidence.double(), right.long(), input="confidence")
    assert result.confidence == pytest.approx(reference.confidence, abs=1e-3)
    assert result.accuracy == reference.accuracy


def test_modes_of_modules_are_restored_and_progress_is_reported(model) -> None:
    model.train()
    model.base_model.dropout.eval()
    tokens: list[int] = []
    scan_causal_lm(model, texts(), progress=tokens.append)
    assert (model.training, model.base_model.training, model.base_model.dropout.training) == (True, True, False)
    assert tokens == sorted(tokens)
    assert len(tokens) == 24
    assert model.head.weight.grad is None


def test_one_pass_takes_generators_and_data_loaders(model) -> None:
    sequences = texts()

    def once() -> Iterator[Tensor]:
        yield from sequences

    from torch.utils.data import DataLoader

    loader = DataLoader(sequences, batch_size=None)
    states = [scan_causal_lm(model, batches, token_counts=COUNTS) for batches in (once(), loader, sequences)]
    assert states[0].to_dict() == states[1].to_dict() == states[2].to_dict()
    result = evaluate_causal_lm(model, sequences, token_counts=COUNTS)
    assert isinstance(result, TokenEvaluation)
    assert result.to_dict() == states[0].evaluate().to_dict()


def test_counts_leave_out_padding() -> None:
    counts = count_tokens([padded([torch.tensor([3, 3, 1]), torch.tensor([2, 3])], "right", token=1)])
    assert counts == {1: 1, 2: 1, 3: 3}


class Bidirectional(SmallLM):
    """Each hidden state sees all tokens, as in encoders."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None):
        hidden = self.base_model(input_ids, attention_mask).last_hidden_state
        from types import SimpleNamespace

        return SimpleNamespace(logits=self.head(hidden[:, -1:].expand_as(hidden)))


class Scaled(SmallLM):
    """A model that scales its logits, and does not say so in its config."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None):
        output = super().forward(input_ids, attention_mask)
        output.logits = output.logits * 1.05
        return output


def test_models_that_cannot_be_evaluated_are_refused(model) -> None:
    with pytest.raises(ValueError, match="Bidirectional is not causal"):
        scan_causal_lm(Bidirectional(), texts())
    with pytest.raises(ValueError, match=r'logits of Scaled are not those.*head="logits"'):
        scan_causal_lm(Scaled(), texts())
    scaled = Scaled()
    check_equal(scan_causal_lm(scaled, texts(), token_counts=COUNTS, head="logits"), oracle(scaled, texts()))
    with pytest.raises(TypeError, match="Linear has no language-model head"):
        scan_causal_lm(nn.Linear(2, 2), texts())
    model.config.is_encoder_decoder = True
    with pytest.raises(TypeError, match="SmallLM is an encoder-decoder"):
        scan_causal_lm(model, texts())


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([], ValueError, "no batches"),
        ([torch.tensor([[1], [2]])], ValueError, "no sequence has two tokens"),
        (
            [{"input_ids": torch.ones(2, 3).long(), "labels": torch.full((2, 3), -100)}],
            ValueError,
            "every label is -100",
        ),
        ([torch.tensor([[1, VOCABULARY]])], IndexError, rf"token {VOCABULARY} of input_ids is not in the vocabulary"),
        ([{"input_ids": [[1, 2]], "labels": [[1, 99]]}], IndexError, "target 99 is out of range"),
        (
            [{"input_ids": [[1, 2]], "labels": [1, 2, 3]}],
            ValueError,
            r"labels must have the shape of input_ids, \(1, 2\)",
        ),
        ([{"text": "hello"}], TypeError, "needs \"input_ids\".*'text'"),
        (["hello"], TypeError, "tokenize"),
        ({"input_ids": [[1, 2]]}, TypeError, r"pass \[batch\]"),
        ([torch.rand(2, 3)], ValueError, "float32"),
        ([{"input_ids": [[1, 2]], "sequence_ids": [[1.5, 2.5]]}], ValueError, "sequence_ids must be"),
    ],
)
def test_invalid_batches(model, batches, error, message) -> None:
    with pytest.raises(error, match=message):
        scan_causal_lm(model, batches)


def test_one_sequence_is_refused(model) -> None:
    with pytest.raises(ValueError, match="at least two are needed"):
        evaluate_causal_lm(model, [torch.randint(VOCABULARY, (1, 30))])
    with pytest.raises(ValueError, match="head must be"):
        evaluate_causal_lm(model, texts(), head="linear")
