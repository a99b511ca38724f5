"""`dualfocal evaluate` for files that are larger than the allowed memory."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dualfocal.predictions import save_predictions

N = 400
RANDOM = np.random.default_rng(1)
LOGITS = torch.tensor(2 * RANDOM.normal(size=(N, 3)))
TARGET = torch.tensor(RANDOM.integers(0, 3, N))
SMALL = ("--max-memory", "4KB")


@pytest.fixture
def file():
    """Write the predictions in a format."""

    def write(suffix: str) -> str:
        save_predictions(f"file{suffix}", LOGITS, input="logits", target=TARGET, class_names=("cat", "dog", "emu"))
        return f"file{suffix}"

    return write


@pytest.mark.parametrize("suffix", [".safetensors", ".csv", ".parquet"])
def test_the_numbers_are_those_of_all_rows(file, record, suffix):
    (exact,) = record("evaluate", file(suffix))["files"]
    (streamed,) = record("evaluate", f"file{suffix}", *SMALL)["files"]
    for name in ("error", "nll", "brier", "ece", "mce", "classwise_ece", "num_samples", "num_classes"):
        assert streamed[name] == pytest.approx(exact[name], abs=1e-9)
    # Only the first sentence: p-values of single classes come from moments, and may order the classes differently.
    assert streamed["verdict"].split(". ")[0] == exact["verdict"].split(". ")[0]


def test_one_line_says_it(file, run):
    np.save("logits.npy", LOGITS.numpy())
    np.save("labels.npy", TARGET.numpy())
    _, err = run("evaluate", "logits.npy", "--target", "labels.npy", *SMALL)
    why, taken = err.splitlines()
    assert why.startswith("logits.npy: needs 9,600 bytes of memory, but the limit is 4,000 bytes: read in one pass; ")
    assert taken == "logits.npy: logits from 'logits' (N x 3, float64), labels from 'labels.npy'"


def test_files_of_both_kinds_keep_their_order(file, record):
    np.savez("small.npz", logits=LOGITS.numpy()[:5], target=TARGET.numpy()[:5])
    names = [file(".parquet"), "small.npz", file(".csv")]
    files = record("evaluate", *names, "--max-memory", "4KB", "--no-inference")["files"]
    assert [(one["file"], one["num_samples"]) for one in files] == [
        ("file.parquet", N),
        ("small.npz", 5),
        ("file.csv", N),
    ]


@pytest.mark.parametrize(
    ("option", "arguments"),
    [
        ("--calibrate", ["--calibrate", "temperature"]),
        ("--convention", ["--convention", "published"]),
        ("--group-by", ["--group-by", "target"]),
        ("--merge", ["--merge"]),
    ],
)
def test_options_that_need_all_rows(file, refused, option, arguments):
    others = [file(".parquet")] if option == "--merge" else []
    line = refused("evaluate", file(".csv"), *others, *arguments, *SMALL)
    assert f"it cannot be read in one pass, because {option} needs all rows at once" in line


@pytest.mark.parametrize("binary", ["top_label", "positive"])
def test_one_score_per_sample(run, record, binary):
    np.save("probs.npy", LOGITS.softmax(1)[:, 1].numpy())
    np.save("labels.npy", (TARGET == 1).numpy())
    arguments = ("evaluate", "probs.npy", "--target", "labels.npy")
    _, err = run(*arguments, "--max-memory", "2KB", code=2)
    assert "'probs' is one score per sample, a binary problem: give --binary top_label" in err
    (exact,) = record(*arguments, "--binary", binary)["files"]
    (streamed,) = record(*arguments, "--binary", binary, "--max-memory", "2KB")["files"]
    for name in ("error", "nll", "brier", "ece", "mce", "num_samples", "num_classes"):
        assert streamed[name] == pytest.approx(exact[name], abs=1e-9)


def test_confidences_only_need_all_rows(refused):
    rows = "".join(f"{k % 3},0.{5 + k % 5},{k % 2}\n" for k in range(N))
    Path("file.csv").write_text("prediction,confidence,label\n" + rows)
    assert "only the confidence of the predicted class" in refused("evaluate", "file.csv", *SMALL)


def test_errors_name_the_file_and_the_row(run):
    values = LOGITS.clone()
    values[321, 0] = torch.inf
    save_predictions("file.safetensors", values, input="logits", target=TARGET)
    out, err = run("evaluate", "file.safetensors", *SMALL, code=2)
    _, line = err.splitlines()
    assert out == ""
    assert line.startswith("dualfocal: file.safetensors: ")
    assert line.endswith("row 321 holds +inf")
