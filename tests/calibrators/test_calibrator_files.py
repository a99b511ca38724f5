"""Saved calibrators load unchanged, or an error names the file."""

import json
import os
import re

import numpy as np
import pytest
import torch
from calibrator_cases import NAMES, sample
from case_loops import for_each

from dualfocal.calibrators import (
    Chain,
    HistogramBinning,
    IsotonicCalibration,
    MatrixScaling,
    TemperatureScaling,
    VectorScaling,
    load_calibrator,
    make_calibrator,
    save_calibrator,
)

ABOUT = "dualfocal_calibrator"

LOGITS, TARGET = sample()
NEW, _ = sample(50, seed=4)


def fitted(name: str = "vector"):
    return make_calibrator(name).fit(LOGITS, TARGET)


@for_each(name=NAMES)
def test_round_trip(name, tmp_path) -> None:
    calibrator = fitted(name)
    calibrator.class_names = ("cat", "dog", "Ünïcödé \u200b", "")
    path = tmp_path / "c.npz"
    save_calibrator(calibrator, path)
    back = load_calibrator(str(path))
    assert type(back) is type(calibrator)
    assert repr(back) == repr(calibrator)
    assert back.report == calibrator.report
    assert back.class_names == calibrator.class_names
    for z in (NEW, NEW.double()):
        assert torch.equal(back(z), calibrator(z))
    assert os.listdir(tmp_path) == ["c.npz"]


def test_options_come_back(tmp_path) -> None:
    chain = Chain(
        TemperatureScaling("ece", num_bins=7),
        Chain(VectorScaling(prior=2.5), MatrixScaling(prior=0.5, force=True)),
        HistogramBinning(9, bins="width", smoothing=0.5),
        IsotonicCalibration(smoothing=0.0),
    ).fit(LOGITS, TARGET)
    path = tmp_path / "c.npz"
    save_calibrator(chain, path)
    back = load_calibrator(path)
    assert repr(back) == repr(chain)
    assert torch.equal(back(NEW), chain(NEW))
    back.fit(LOGITS, TARGET)  # and work
    assert torch.equal(back(NEW), chain(NEW))


def test_without_a_report(tmp_path) -> None:
    bare = VectorScaling()
    bare.load_state_dict(fitted().state_dict())
    save_calibrator(bare, tmp_path / "c.npz")
    back = load_calibrator(tmp_path / "c.npz")
    assert back.report is None
    assert back.class_names is None
    assert torch.equal(back(NEW), bare(NEW))


def test_float32_buffers_come_back_with_the_same_output(tmp_path) -> None:
    narrow = fitted("isotonic").to(torch.float32)
    save_calibrator(narrow, tmp_path / "c.npz")
    assert torch.equal(load_calibrator(tmp_path / "c.npz")(NEW), narrow(NEW))


def test_unfitted_calibrators_and_bad_paths_are_refused(tmp_path) -> None:
    with pytest.raises(RuntimeError, match="not fitted"):
        save_calibrator(VectorScaling(), tmp_path / "c.npz")
    for path in (tmp_path / "c.pt", tmp_path / "c"):
        with pytest.raises(ValueError, match=rf"{re.escape(str(path))}: .* must end in \.npz"):
            save_calibrator(fitted(), path)
        with pytest.raises(ValueError, match=rf"{re.escape(str(path))}: .* must end in \.npz"):
            load_calibrator(path)
    with pytest.raises(ValueError, match="there is no folder"):
        save_calibrator(fitted(), tmp_path / "nowhere" / "c.npz")
    assert os.listdir(tmp_path) == []


def test_a_save_that_fails_leaves_the_earlier_file(tmp_path, monkeypatch) -> None:
    path = tmp_path / "c.npz"
    save_calibrator(fitted(), path)
    before = path.read_bytes()

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("numpy.savez", fail)
    with pytest.raises(OSError, match="disk full"):
        save_calibrator(fitted("temperature"), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["c.npz"]


def rewritten(path, *, about=None, text=None, state=None) -> None:
    """Write the file again with other contents."""
    with np.load(path) as archive:
        arrays = dict(archive)
    old = json.loads(arrays.pop(ABOUT).item())
    text = text or json.dumps(old | (about or {}))
    np.savez(path, **{ABOUT: np.array(text)}, **(arrays if state is None else state))


def not_finite() -> dict[str, torch.Tensor]:
    state = fitted().state_dict()
    state["bias"][1] = torch.nan
    return state


BROKEN = {
    "schema": ({"about": {"schema": 2}}, "schema 2, .* reads schema 1"),
    "nan": ({"state": not_finite()}, "must be finite"),
    "missing tensor": ({"state": {"bias": torch.zeros(4)}}, "damaged"),
    "strange tensor": ({"state": fitted().state_dict() | {"more": torch.zeros(4)}}, "damaged"),
    "empty tensors": ({"state": {"bias": torch.zeros(0), "weight": torch.zeros(0)}}, "damaged"),
    "no JSON": ({"text": "{"}, "damaged"),
    "a list": ({"text": "[]"}, "damaged"),
    "unknown method": ({"about": {"calibrator": {"name": "Magic", "arguments": {}}}}, "damaged"),
    "unknown option": ({"about": {"calibrator": {"name": "VectorScaling", "arguments": {"x": 1}}}}, "damaged"),
    "bad option": ({"about": {"calibrator": {"name": "VectorScaling", "arguments": {"prior": -1}}}}, "damaged"),
    "no step": ({"about": {"calibrator": {"name": "Chain", "steps": []}}, "state": {}}, "damaged"),
    "report": ({"about": {"report": {"notes": []}}}, "damaged"),
    "sizes apart": ({"state": {"bias": torch.zeros(5), "weight": torch.ones(4)}}, "damaged"),
    "wrong shape": ({"state": {"bias": torch.zeros(4), "weight": torch.ones(4, 4, 4)}}, "damaged"),
}


@for_each(case=BROKEN)
def test_broken_files_are_named(case, tmp_path) -> None:
    path = tmp_path / "c.npz"
    save_calibrator(fitted(), path)
    changes, message = BROKEN[case]
    rewritten(path, **changes)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: .*{message}") as error:
        load_calibrator(path)
    assert "\n" not in str(error.value)


def test_truncated_and_missing_files_are_named(tmp_path) -> None:
    path = tmp_path / "c.npz"
    named = f"^{re.escape(str(path))}: "
    with pytest.raises(ValueError, match=f"{named}there is no such file"):
        load_calibrator(path)
    save_calibrator(fitted(), path)
    whole = path.read_bytes()
    for end in (0, 4, 100, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match=f"{named}is damaged"):
            load_calibrator(path)
    path.write_bytes(b"\xff" * 200)
    with pytest.raises(ValueError, match=named):
        load_calibrator(path)
    np.savez(path, logits=LOGITS, target=TARGET)
    with pytest.raises(ValueError, match=f"{named}is not a calibrator"):
        load_calibrator(path)
    np.save(tmp_path / "array.npy", LOGITS)
    (tmp_path / "array.npy").rename(path)
    with pytest.raises(ValueError, match=f"{named}is damaged, or not a calibrator"):
        load_calibrator(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ValueError, match=named):
        load_calibrator(path)
