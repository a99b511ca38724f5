"""Sums of next-token predictions by sequence, position and frequency, without a language model."""

import json
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from dualfocal.metrics import TokenConfidences, evaluate, holm

COUNTS = torch.tensor([0, 9, 10, 99, 100, 12345])
NAMES = ["0", "1-9", "10-99", "10-99", "100-999", "10,000-99,999"]  # of these counts
POSITIONS = ["1", "2-3", "4-7", "8-15", "16-31"]


def sample(sequences: int = 60, length: int = 20, sharpen: float = 1.0, seed: int = 0) -> dict[str, Tensor]:
    """Tokens of sequences of equal length; those at positions above 7 are over-confident if ``sharpen`` > 1."""
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.rand(sequences * length, generator=generator, dtype=torch.float64) * 0.8 + 0.1
    right = torch.rand(len(confidence), generator=generator) < confidence
    position = torch.arange(1, length + 1).repeat(sequences)
    confidence = torch.where(position > 7, confidence ** (1 / sharpen), confidence)
    return {
        "confidence": confidence,
        "right": right,
        "position": position,
        "sequence": torch.arange(sequences).repeat_interleave(length),
        "predicted": torch.randint(6, (len(confidence),), generator=generator),
        "nll": -confidence.log(),
        "brier": (1 - confidence) ** 2,
    }


def state_of(columns: dict[str, Tensor], **options: object) -> TokenConfidences:
    state = TokenConfidences(COUNTS, **options)
    state.update(**columns)
    return state


def test_groups_equal_evaluations_of_their_tokens() -> None:
    columns = sample(sharpen=2.0)
    result = state_of(columns).evaluate()
    position, predicted = columns["position"], columns["predicted"]
    masks = {"all": torch.ones_like(position, dtype=torch.bool)}
    masks |= {name: (position >= 2**k) & (position < 2 ** (k + 1)) for k, name in enumerate(POSITIONS)}
    masks |= {
        f"f{name}": torch.tensor([NAMES[token] == name for token in predicted.tolist()]) for name in sorted({*NAMES})
    }
    evaluations = {"all": result.evaluation}
    evaluations |= {group.name: group.evaluation for group in result.by_position}
    evaluations |= {f"f{group.name}": group.evaluation for group in result.by_frequency}
    assert evaluations.keys() == masks.keys()
    for name, mask in masks.items():
        expected = evaluate(
            columns["confidence"][mask],
            columns["right"][mask].long(),
            input="confidence",
            inference=name in ("all", "4-7"),
            clusters=columns["sequence"][mask],
        )
        got = evaluations[name]
        for part in ("count", "confidence", "correct"):
            np.testing.assert_allclose(getattr(got.bins, part), getattr(expected.bins, part), atol=1e-12)
        assert (got.ece, got.error, got.debiased_ece) == pytest.approx(
            (expected.ece, expected.error, expected.debiased_ece), rel=0, abs=1e-12
        )
        assert got.inference.clusters.number == len(columns["sequence"][mask].unique())
        if expected.inference is not None:
            assert got.inference.clusters.design_effect == pytest.approx(expected.inference.clusters.design_effect)
            assert got.inference.floors["mce"].mean == pytest.approx(expected.inference.floors["mce"].mean)
            assert got.inference.p_value == pytest.approx(expected.inference.p_value, abs=0.02)
    assert result.perplexity == pytest.approx(math.exp(float(columns["nll"].mean())))
    assert result.evaluation.brier == pytest.approx(float(columns["brier"].mean()))
    assert (result.num_tokens, result.num_sequences) == (1200, 60)
    groups = [group for _, group in result.groups()]
    assert len(groups) == 5 + 5  # p-values are adjusted for both kinds together
    assert [group.p_adjusted for group in groups] == holm([group.inference.p_value for group in groups])


def test_only_late_positions_are_miscalibrated() -> None:
    result = state_of(sample(100, sharpen=4.0)).evaluate()
    bad = [group.name for group in result.by_position if group.p_adjusted <= 0.05]
    assert bad == ["8-15", "16-31"]
    assert result.verdict().startswith("Over-confident")
    assert "position 8-15" in result.verdict() or "position 16-31" in result.verdict()
    calibrated = state_of(sample(100)).evaluate()
    assert "No miscalibration detectable in any of 10 groups by position and frequency." in calibrated.verdict()


def test_batches_and_shards_in_any_order_have_the_numbers_of_all_tokens() -> None:
    columns = sample()
    whole = state_of(columns)
    order = np.random.default_rng(0).permutation(len(columns["position"]))
    parts = [
        state_of({name: column[torch.from_numpy(index)] for name, column in columns.items()})
        for index in np.array_split(order, 5)
    ]
    merged = parts[4] + parts[1] + parts[0] + parts[3] + parts[2]
    results = whole.evaluate(), merged.evaluate()
    for one, other in zip(*(result.groups() for result in results), strict=True):
        assert one[0] == other[0]
        assert other[1].evaluation.scalars() == pytest.approx(one[1].evaluation.scalars(), abs=1e-9)
        assert other[1].p_adjusted == pytest.approx(one[1].p_adjusted)
    assert results[1].evaluation.scalars() == pytest.approx(results[0].evaluation.scalars(), abs=1e-9)
    assert merged.num_tokens == merged.total.num_samples == 1200


def test_state_survives_json_and_merges_afterwards() -> None:
    columns = sample()
    half = len(columns["position"]) // 2
    states = [
        state_of({name: column[part] for name, column in columns.items()}) for part in (slice(half), slice(half, None))
    ]
    states[0].shards = {"first"}
    read = [TokenConfidences.from_dict(json.loads(json.dumps(state.to_dict()))) for state in states]
    assert [state.to_dict() for state in read] == [state.to_dict() for state in states]
    assert read[0].shards == {"first"}
    assert (read[0] + read[1]).to_dict() == (states[0] + states[1]).to_dict()
    whole = state_of(columns).evaluate().evaluation
    assert (read[0] + read[1]).evaluate().evaluation.scalars() == pytest.approx(whole.scalars(), abs=1e-9)
    empty = TokenConfidences.from_dict(TokenConfidences().to_dict())
    assert (empty.num_tokens, empty.num_sequences, empty.num_bins) == (0, 0, 15)
    with pytest.raises(ValueError, match="schema 7"):
        TokenConfidences.from_dict(states[0].to_dict() | {"schema": 7})


def test_result_is_plain_json() -> None:
    content = state_of(sample()).evaluate().to_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_a_group_in_one_sequence_is_left_out_and_named() -> None:
    columns = sample()
    state = TokenConfidences()
    state.update(**columns)
    state.update(torch.tensor([0.5]), torch.tensor([True]), sequence=3, position=torch.tensor([500]))
    result = state.evaluate()
    assert result.omitted == ("position 256-511",)
    assert "256-511" in result.table().title
    assert result.num_tokens == 1201  # it counts among all tokens
    assert result.by_frequency == ()
    assert math.isnan(result.perplexity)  # one token came without its likelihood


def test_names_of_groups_follow_their_limits() -> None:
    for token, name in enumerate(NAMES):
        columns = sample()
        result = state_of(columns | {"predicted": torch.full_like(columns["predicted"], token)}).evaluate()
        assert [(group.name, group.evaluation.num_samples) for group in result.by_frequency] == [(name, 1200)]
    state = TokenConfidences(COUNTS)
    same = TokenConfidences({5: 12345, 4: 100, 3: 99, 2: 10, 1: 9})
    assert torch.equal((state + same).decade, state.decade)
    assert (same + TokenConfidences(torch.cat([COUNTS, torch.tensor([0])]))).num_tokens == 0


@pytest.mark.parametrize(
    ("counts", "message"),
    [([0.5, 1.0], "whole number per token"), ([[1]], "shape"), ([-1, 2], "not negative"), ({}, "one whole number")],
)
def test_invalid_counts(counts, message) -> None:
    with pytest.raises(ValueError, match=message):
        TokenConfidences(counts)


def test_invalid_tokens() -> None:
    columns = sample(2, 2)
    with pytest.raises(ValueError, match="position must be at least 1, got 0"):
        state_of(columns | {"position": columns["position"] - 1})
    with pytest.raises(ValueError, match="need the predicted token"):
        state_of({name: column for name, column in columns.items() if name != "predicted"})
    with pytest.raises(ValueError, match="no tokens"):
        TokenConfidences().evaluate()
    with pytest.raises(ValueError, match="one sequence"):
        state_of(columns | {"sequence": torch.zeros_like(columns["sequence"])}).evaluate()
    with pytest.raises(ValueError, match="same num_bins and token_counts"):
        state_of(columns) + state_of(columns, num_bins=10)
    with pytest.raises(ValueError, match="same num_bins and token_counts"):
        state_of(columns) + TokenConfidences()
