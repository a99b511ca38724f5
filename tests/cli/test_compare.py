"""`dualfocal compare` names the better model if one is better by construction, and only then."""

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from dualfocal import metrics


@pytest.fixture
def run(run):
    return partial(run, "compare")


def save(name: str, target: np.ndarray, **values: torch.Tensor) -> str:
    np.savez(name, target=target, **{kind: tensor.numpy() for kind, tensor in values.items()})
    return name


def drawn(n: int, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    """Calibrated logits of 4 classes, and labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, 4, generator=generator)
    return logits, torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0].numpy()


def better(out: str) -> dict[str, str]:
    """The last cell of each row of the table, by the first."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    return {row[0]: row[-1] for row in rows}


def test_a_sharpened_model_is_worse_but_makes_the_same_errors(run):
    logits, target = drawn(500)
    save("sharp.npz", target, logits=2.5 * logits)
    save("true.npz", target, logits=logits)
    out, err = run("sharp.npz", "true.npz")
    assert [line.split(":")[0] for line in err.splitlines() if line] == ["sharp.npz", "true.npz"]
    assert out.startswith("A = sharp.npz, B = true.npz, 500 samples")
    verdict = out.splitlines()[-1]
    assert re.fullmatch(
        r"B has the lower NLL, by [\d.]+ nats \([\d.]+ to [\d.]+\); error not significantly different; "
        r"B has the lower debiased RMS error, by [\d.]+ points \([\d.]+ to [\d.]+\) \(90 % intervals, N = 500\)\.",
        verdict,
    )
    size, low, high = map(float, re.findall(r"\d+\.\d{4}", verdict))
    probs = [(sharpness * logits).double().softmax(1).numpy()[np.arange(500), target] for sharpness in (2.5, 1)]
    assert size == pytest.approx(np.log(probs[1]).mean() - np.log(probs[0]).mean(), abs=5e-5)
    assert low < size < high
    assert better(out)["NLL [nats]"] == better(out)["ECE [%]"] == "B"
    assert better(out)["error [%]"] == ""

    out, _ = run("true.npz", "sharp.npz")
    assert out.splitlines()[-1].startswith(f"A has the lower NLL, by {size:.4f} nats (")
    assert better(out)["NLL [nats]"] == better(out)["ECE [%]"] == "A"


def test_the_model_with_fewer_errors_is_named(run):
    logits, target = drawn(400)
    save("guess.npz", target, logits=logits.roll(1, dims=1))
    save("know.npz", target, logits=logits)
    wrong = [int((z.argmax(1).numpy() != target).sum()) for z in (logits.roll(1, dims=1), logits)]
    out, _ = run("guess.npz", "know.npz")
    assert f"B has the lower error, by {(wrong[0] - wrong[1]) / 4:.2f} points (" in out


def test_json_is_the_library_s_numbers(record):
    logits, target = drawn(300)
    save("a.npz", target, logits=2 * logits)
    save("b.npz", target, logits=logits)
    got = record("a.npz", "b.npz", "--num-bins", 10, "--level", 0.8, "--seed", 5)
    expected = metrics.compare((2 * logits), logits, torch.from_numpy(target), num_bins=10, level=0.8, seed=5)
    assert (got.pop("a"), got.pop("b")) == ("a.npz", "b.npz")
    assert got.pop("verdict") == expected.verdict()
    assert got == json.loads(json.dumps(expected.to_dict()))
    alone = [metrics.evaluate(values, torch.from_numpy(target), num_bins=10) for values in (2 * logits, logits)]
    for name, row in got["differences"].items():
        assert [row["a"], row["b"]] == [getattr(evaluation, name) for evaluation in alone], name
        assert row["difference"] == row["b"] - row["a"], name


def test_a_model_is_not_significantly_different_from_itself(run, record, refused):
    logits, target = drawn(10)
    save("a.npz", target, logits=logits)
    save("b.npz", target, logits=logits)
    assert refused("a.npz", "a.npz") == "a.npz is given more than once"
    out, err = run("a.npz", "b.npz")
    assert "the predictions of A and B are identical" in err
    verdict = out.splitlines()[-1]
    assert verdict.count("not significantly different") == 3
    assert verdict.endswith("(90 % intervals, N = 10).")
    assert set(better(out).values()) == {""}
    for name, row in record("a.npz", "b.npz")["differences"].items():
        assert row["difference"] == 0, name
        assert row["interval"] == pytest.approx([0, 0], abs=1e-12), name


def test_logits_against_probabilities(record):
    logits, target = drawn(300)
    save("a.npz", target, logits=2 * logits)
    save("b.npz", target, probs=logits.double().softmax(1))
    save("c.npz", target, logits=logits)
    mixed, plain = record("a.npz", "b.npz")["differences"], record("a.npz", "c.npz")["differences"]
    for name in mixed:
        assert mixed[name]["b"] == pytest.approx(plain[name]["b"], abs=1e-6), name
        assert mixed[name]["interval"] == pytest.approx(plain[name]["interval"], abs=1e-5), name


def test_binary_scores_by_hand(record):
    target = np.array([0, 0, 1, 1] * 3)
    save("a.npz", target, probs=torch.tensor([0.4, 0.4, 0.4, 0.4] * 3, dtype=torch.float64))
    save("b.npz", target, probs=torch.tensor([0.1, 0.1, 0.9, 0.9] * 3, dtype=torch.float64))
    got = record("a.npz", "b.npz", "--binary", "positive", "--num-bins", 2)["differences"]
    assert [got["ece"]["a"], got["ece"]["b"]] == pytest.approx([0.1, 0.1], abs=1e-9)
    assert [got["error"]["a"], got["error"]["b"]] == [0.5, 0.0]
    assert got["nll"]["difference"] == pytest.approx(-np.log(0.9) + (np.log(0.6) + np.log(0.4)) / 2, abs=1e-9)


def test_ignored_labels_count_nothing(record):
    logits, target = drawn(200)
    for name, sharpness in (("a", 2.0), ("b", 1.0)):
        save(f"{name}.npz", target, logits=sharpness * logits)
        padding = torch.full((50, 4), sharpness)
        save(f"{name}_padded.npz", np.append(target, np.full(50, 9)), logits=torch.cat([sharpness * logits, padding]))
    plain, padded = record("a.npz", "b.npz"), record("a_padded.npz", "b_padded.npz", "--ignore-index", 9)
    assert padded["num_samples"] == 200
    assert padded["differences"] == plain["differences"]


def test_markup_in_names_is_printed_verbatim(run):
    logits, target = drawn(50)
    a, b = (save(f"[bold]{name}.npz", target, logits=logits) for name in "xy")
    out, err = run(a, b)
    assert out.startswith(f"A = {a}, B = {b}, 50 samples")
    assert err.startswith(f"{a}: logits")


# Refusals


def test_other_labels_are_refused(refused):
    logits, target = drawn(100)
    save("a.npz", target, logits=logits)
    other = target.copy()
    other[[7, 30, 99]] = (target[[7, 30, 99]] + 1) % 4
    save("b.npz", other, logits=logits)
    line = refused("a.npz", "b.npz")
    assert line.startswith("a.npz and b.npz must have the same labels")
    assert f"3 of 100 rows differ, first row 7: {target[7]} and {other[7]}; --id COLUMN" in line
    save("b.npz", target[:60], logits=logits[:60])
    assert re.search(r"same labels.*100 and 60 labels", refused("a.npz", "b.npz"))


def test_bad_input_is_one_line_and_exit_code_2(refused):
    logits, target = drawn(50)
    save("a.npz", target, logits=logits)
    damaged = logits.clone()
    damaged[7, 1] = torch.nan
    save("nan.npz", target, logits=damaged)
    assert "row 7 holds NaN" in refused("a.npz", "nan.npz")
    assert "row 7 holds NaN" in refused("nan.npz", "a.npz", "--json")
    save("inf.npz", target, logits=logits / 0)
    assert "inf.npz" in refused("a.npz", "inf.npz")
    assert refused("a.npz", "b.npz") == "b.npz: there is no such file"
    assert refused("a.npz").startswith("Missing argument 'B'")
    assert "--num-bins" in refused("a.npz", "a.npz", "--num-bins", "0")
    assert "--merge" in refused("a.npz", "a.npz", "--merge")
    Path("c.csv").write_text("one,two,y\n0.5,0.5,1\n")
    assert "--logits NAME or --probs NAME" in refused("a.npz", "c.csv")


def test_infinite_nll(run, record):
    probs = torch.tensor([[1.0, 0.0], [0.25, 0.75]], dtype=torch.float64).repeat(30, 1)
    target = np.tile([1, 1], 30)
    save("sure.npz", target, probs=probs)
    save("unsure.npz", target, probs=probs.clamp(0.1, 0.9))
    content = record("sure.npz", "unsure.npz")["differences"]
    assert content["nll"]["a"] is None
    assert content["nll"]["difference"] is None
    assert content["nll"]["interval"] == [None, None]
    assert content["error"]["a"] == 0.5
    save("copy.npz", target, probs=probs)
    cases = ("copy.npz", "NLL not significantly", ""), ("unsure.npz", "B has the lower NLL", "B")
    for other, verdict, winner in cases:
        out, _ = run("sure.npz", other)
        assert out.splitlines()[-1].startswith(verdict), other
        assert better(out)["NLL [nats]"] == winner, other
        assert "nan" not in out, other


def test_classes_in_another_order_are_aligned(run, record):
    logits, target = drawn(300)
    names, order = np.array(["ant", "bee", "cow", "doe"]), [3, 1, 0, 2]
    np.savez("a.npz", logits=logits, target=target, class_names=names)
    labels = np.array(order).argsort()[target]
    np.savez("b.npz", logits=1.5 * logits[:, order], target=labels, class_names=names[order])
    np.savez("c.npz", logits=1.5 * logits, target=target, class_names=names)
    aligned, same = record("a.npz", "b.npz"), record("a.npz", "c.npz")
    assert aligned["differences"] == same["differences"]
    assert "b.npz: " in run("a.npz", "b.npz")[1]
    assert "same order" in run("a.npz", "b.npz")[1]


def test_rows_in_another_order_are_matched_by_id(run, record, refused):
    logits, target = drawn(300)
    ids = np.array([f"image{k}" for k in range(300)])
    order = np.random.default_rng(0).permutation(300)[:280]
    np.savez("a.npz", logits=logits, target=target, id=ids)
    np.savez("b.npz", logits=1.5 * logits[order], target=target[order], id=ids[order])
    kept = np.sort(order)
    np.savez("same_a.npz", logits=logits[kept], target=target[kept])
    np.savez("same_b.npz", logits=1.5 * logits[kept], target=target[kept])
    matched, same = record("a.npz", "b.npz", "--id", "id"), record("same_a.npz", "same_b.npz")
    assert matched["differences"] == same["differences"]
    source, *_, remark = run("a.npz", "b.npz", "--id", "id")[1].splitlines()
    assert source.endswith(", ids from 'id'")
    assert remark == "280 rows matched by 'id'; 20 rows are only in A and 0 only in B"
    ids[7] = "image3"
    np.savez("twice.npz", logits=logits, target=target, id=ids)
    assert "'image3' more than once" in refused("twice.npz", "b.npz", "--id", "id")
    np.savez("other.npz", logits=logits, target=target, id=np.arange(300))
    assert "no id" in refused("a.npz", "other.npz", "--id", "id")


@pytest.mark.parametrize("ids", [np.arange(300.0), np.arange(300).astype(str)], ids=["floats", "texts"])
def test_ids_that_are_whole_numbers_match_floats_and_texts(record, ids):
    logits, target = drawn(300)
    save("a.npz", target, logits=logits)
    save("b.npz", target, logits=1.5 * logits)
    expected = record("a.npz", "b.npz")
    np.savez("a_ids.npz", logits=logits, target=target, id=np.arange(300))
    np.savez("b_ids.npz", logits=1.5 * logits.flip(0), target=target[::-1], id=ids[::-1])
    assert record("a_ids.npz", "b_ids.npz", "--id", "id")["differences"] == expected["differences"]
