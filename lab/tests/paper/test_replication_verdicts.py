"""The claims are decided by their rules: on synthetic runs, each verdict of each rule."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_results import make_result

from dualfocal.cli import main
from dualfocal.metrics import evaluate
from dualfocal.metrics.groups import holm
from dualfocal_lab.paper import replication
from dualfocal_lab.paper.intervals import prediction_interval
from dualfocal_lab.paper.replication import Replication, decide_claims, holm_family
from dualfocal_lab.paper.replication_plan import planned_runs
from dualfocal_lab.paper.verdicts import Claim, Difference, direction_verdict, position_verdict
from dualfocal_lab.runs import Run, RunError, Scaled, find_runs
from dualfocal_lab.runs.layout import LOG, PREDICTIONS, RECIPE, RESULT, SHIFT
from dualfocal_lab.train.presets import preset

RESULTS = Path(__file__).parents[2] / "results" / "cifar10"
SEEDS = (1, 2, 3, 4, 5)
JITTER = (-2e-5, 1e-5, 0.0, -1e-5, 2e-5)  # over seeds: so little that intervals tell losses apart
# Group: settings; numbers near the published ones; T by ECE and by NLL; scale of the logits; what noise leaves of them.
GROUPS: dict[str, dict[str, Any]] = {
    "cross_entropy": {"error": 0.0495, "ece": 0.0435, "nll": 0.412, "ece_t": 0.0135, "nll_t": 0.21, "noisy": 0.8},
    "flsd": {"error": 0.0498, "ece": 0.0155, "nll": 0.1755, "ece_t": 0.0095, "nll_t": 0.19, "noisy": 0.4},
    "dual_focal": {"error": 0.0517, "ece": 0.0046, "nll": 0.17, "ece_t": 0.0046, "nll_t": 0.17, "noisy": 0.6},
    "dual_focal gamma 6": {"error": 0.0517, "ece": 0.006, "nll": 0.17, "ece_t": 0.006, "nll_t": 0.17, "noisy": 0.6},
}
SETTINGS = {"dual_focal gamma 6": ["loss.gamma=6"]}
RNG = torch.Generator().manual_seed(0)
TARGET = torch.randint(10, (120,), generator=RNG)
LOGITS = torch.randn(120, 10, generator=RNG) + 2 * torch.nn.functional.one_hot(TARGET, 10)
EVALUATION = evaluate(LOGITS, TARGET)


def write_run(
    path: Path, settings: Sequence[str], numbers: Mapping[str, float], *, scale: float = 1.0, **fields: Any
) -> Run:
    """A finished run with these numbers in its result."""
    path.mkdir(parents=True, exist_ok=True)
    run = Run(path)
    run.write_json(RECIPE, preset("cifar10_resnet50", settings).to_dict())
    part = scale * LOGITS, TARGET
    run.write_predictions({"val": part, "test": part}, [str(i) for i in range(10)])
    write_result(run, numbers, **fields)
    return run


def write_result(run: Run, numbers: Mapping[str, float], **fields: Any) -> None:
    trained = replace(EVALUATION, **{name: numbers[name] for name in ("error", "ece", "nll")})
    scaled = replace(EVALUATION, ece=numbers["ece_t"], nll=numbers["nll_t"])
    temperatures = {
        "temperature": Scaled(numbers.get("t_nll", 1.01), {"test": scaled}),
        "temperature_ece": Scaled(numbers.get("t_ece", 1.0), {"test": scaled}),
    }
    run.write_result(make_result({"test": trained}, temperatures, **fields))


def numbers_of(group: str, seed: int, changes: Mapping[str, Sequence[float]] | None = None) -> dict[str, float]:
    jittered = {name: value + JITTER[seed - 1] for name, value in GROUPS[group].items()}
    return jittered | {name: values[seed - 1] for name, values in (changes or {}).items()}


def folder(base: Path, group: str, seed: int) -> Path:
    return base / f"{group.replace(' ', '-')}-seed{seed}"


@pytest.fixture(autouse=True, scope="module")
def _no_fsync() -> Iterator[None]:
    """Waiting for the disk would take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="module")
def plan_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs of the plan, each claim as published."""
    base: Path = tmp_path_factory.mktemp("plan")
    for group in GROUPS:
        gamma_6 = group not in ("cross_entropy", "flsd", "dual_focal")
        settings = [f"loss={group.split()[0]}", *SETTINGS.get(group, ())]
        for seed in SEEDS[:3] if gamma_6 else SEEDS:
            scale = (3.0 if group == "dual_focal" else 1.0) + 1e3 * JITTER[seed - 1]
            numbers = numbers_of(group, seed)
            run = write_run(folder(base, group, seed), [*settings, f"seed={seed}"], numbers, scale=scale)
            noisy = (scale * (numbers["noisy"] + 100 * JITTER[seed - 1]) * LOGITS).half().numpy()
            np.savez(run.path / SHIFT, severity5=noisy)
            for epoch in range(1, 31) if gamma_6 else ():
                value = 0.5 if epoch <= 10 else 0.0061 + JITTER[seed - 1]  # only the last 20 count
                run.append({"epoch": epoch, "test_ece": value})
    return base


@pytest.fixture
def runs(plan_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them, to be changed; without the bootstrap, which takes time."""
    monkeypatch.setattr(replication, "DRAWS", 0)
    return Path(shutil.copytree(plan_runs, tmp_path / "runs"))


def decide(base: Path) -> tuple[Replication, dict[str, Claim]]:
    decided = decide_claims(find_runs(base))
    return decided, {claim.id: claim for claim in decided.claims}


def differences(claim: Claim) -> list[Difference]:
    return [part for part in claim.parts if isinstance(part, Difference)]


def spread(center: float, width: float) -> list[float]:
    return [center + width * step for step in (-1, -0.5, 0, 0.5, 1)]


# Verdicts


@pytest.mark.parametrize("direction", [-1, 1])
def test_the_bound_itself_shows_nothing(direction: int) -> None:
    def verdict(near: float, far: float) -> str:
        low, high = sorted((0.3 + direction * near, 0.3 + direction * far))
        return str(direction_verdict((low, high), 0.3, direction))

    assert verdict(0.125, 1.0) == "reproduced"
    assert verdict(0.0, 1.0) == verdict(-1.0, 0.0) == verdict(-1.0, 1.0) == "not shown"
    assert verdict(-1.0, -0.125) == "contradicted"


def test_the_ends_of_an_interval_belong_to_it() -> None:
    assert [str(position_verdict((1.0, 2.0), value)) for value in (0.99, 1.0, 2.0, 2.01)] == [
        "outside",
        "inside",
        "inside",
        "outside",
    ]
    assert position_verdict((1.0, 2.0), 1.5, [2.01]) == "inside"
    assert position_verdict((1.0, 2.0), 1.5, [3.0, 2.0]) == "cannot be decided"


def test_runs_as_published_reproduce_every_claim(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "DRAWS", 20)
    decided, claims = decide(runs)
    assert {name: str(claim.verdict) for name, claim in claims.items()} == {f"C{i}": "reproduced" for i in range(1, 12)}
    assert {str(claim.verdict) for claim in decided.without_known} == {"reproduced"}
    assert (decided.unfinished, decided.not_in_plan, decided.controls) == ((), (), ())
    assert [command.rpartition("/")[2] for command in decided.missing] == [
        f"resnet50-dual_focal-{name}-seed1" for name in ("tf32", "mean", "2nd", "mean_all")
    ]
    parts = [part for claim in decided.claims for part in differences(claim)]
    assert len(parts) == 17
    for part in parts:
        assert part.bootstrap is not None
        assert part.bootstrap[0] <= part.bootstrap[1]
    assert not any(part.bootstrap for claim in decided.without_known for part in differences(claim))


Change = tuple[str, dict[str, Sequence[float]]]
NEAR_FLSD = {"error": spread(0.0496, 3e-4)}
CASES: dict[str, tuple[list[Change], str, str]] = {
    "one of three is outside": ([("cross_entropy", {"ece": spread(0.05, 1e-4)})], "C1", "partly reproduced"),
    "two of three are outside": (
        [("flsd", {"ece": spread(0.02, 1e-4), "nll": spread(0.2, 1e-4)})],
        "C2",
        "not reproduced",
    ),
    "an interval holds a rival": ([("cross_entropy", NEAR_FLSD)], "C1", "cannot be decided"),
    "a rival may make it partly": (
        [("cross_entropy", NEAR_FLSD | {"ece": spread(0.05, 1e-4)})],
        "C1",
        "cannot be decided",
    ),
    "a rival makes no difference": (
        [("cross_entropy", NEAR_FLSD | {"ece": spread(0.05, 1e-4), "nll": spread(0.5, 1e-4)})],
        "C1",
        "not reproduced",
    ),
    "own value outside, a rival inside": ([("flsd", {"error": spread(0.0495, 5e-5)})], "C2", "partly reproduced"),
    "the means differ": ([("dual_focal", {"ece": spread(0.0085, 0.0018)})], "C3", "not reproduced"),
    "above one loss": ([("dual_focal", {"ece": spread(0.02, 1e-4)})], "C4", "partly reproduced"),
    "above both losses": ([("dual_focal", {"ece": spread(0.06, 1e-4)})], "C4", "contradicted"),
    "not told from one, above the other": ([("dual_focal", {"ece": spread(0.0435, 0.01)})], "C4", "not reproduced"),
    "told from neither": (
        [("dual_focal", {"ece_t": spread(0.011, 0.005)})],
        "C5",
        "not shown",
    ),
    "after temperature only": ([("dual_focal", {"nll_t": spread(0.5, 1e-3)})], "C6", "reproduced"),
    "error up to the margin": ([("dual_focal", {"error": spread(0.0524, 1e-4)})], "C7", "reproduced"),
    "error at the margin": ([("dual_focal", {"error": spread(0.0525, 1e-4)})], "C7", "not shown"),
    "error beyond the margin": ([("dual_focal", {"error": spread(0.0526, 1e-5)})], "C7", "contradicted"),
    "one temperature of five": ([("dual_focal", {"t_ece": [1.0, 1.0, 1.1, 1.0, 1.0]})], "C8", "reproduced"),
    "two temperatures of five": ([("dual_focal", {"t_ece": [1.0, 1.0, 1.1, 0.9, 1.0]})], "C8", "not reproduced"),
    "a temperature at the tolerance": ([("dual_focal", {"t_nll": [1.0, 1.0, 1.0, 1.05, 1.0]})], "C8", "not reproduced"),
    "a temperature within it": ([("dual_focal", {"t_nll": [1.0, 0.951, 1.0, 1.049, 1.0]})], "C8", "reproduced"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_verdict_of_each_rule(runs: Path, case: str) -> None:
    changes, claim, verdict = CASES[case]
    for group, numbers in changes:
        for seed in SEEDS:
            write_result(Run(folder(runs, group, seed)), numbers_of(group, seed, numbers))
    _, claims = decide(runs)
    assert claims[claim].verdict == verdict
    assert f"{claim}, {verdict} (" in claims[claim].sentence()


def test_directions_of_logits_and_shift(runs: Path) -> None:
    for group, scale, noisy in (("flsd", 3.0, 0.4), ("dual_focal", 1.0, 0.1)):  # dual focal is the flatter one
        for seed in SEEDS:
            run = Run(folder(runs, group, seed))
            logits = (scale + 1e3 * JITTER[seed - 1]) * LOGITS
            run.write_predictions({"test": (logits, TARGET)}, [str(i) for i in range(10)])
            np.savez(run.path / SHIFT, severity5=((noisy + 100 * JITTER[seed - 1]) * logits).half().numpy())
    _, claims = decide(runs)
    assert [str(part.verdict) for part in claims["C9"].parts] == ["contradicted", "contradicted"]
    assert claims["C9"].verdict == "contradicted"
    assert [str(part.verdict) for part in claims["C11"].parts] == ["reproduced", "contradicted"]
    assert claims["C11"].verdict == "partly reproduced"


def test_a_log_outside_the_interval_is_not_reproduced(runs: Path) -> None:
    for seed in (1, 2, 3):
        run = Run(folder(runs, "dual_focal gamma 6", seed))
        (run.path / LOG).unlink()
        for epoch in range(1, 21):
            run.append({"epoch": epoch, "test_ece": 0.0091 + JITTER[seed - 1]})
    _, claims = decide(runs)
    assert claims["C10"].verdict == "not reproduced"
    assert claims["C10"].parts[0].mean == pytest.approx(0.0091 + sum(JITTER[:3]) / 3)


def test_verdicts_agree_with_adjusted_p_values(runs: Path) -> None:
    for seed in SEEDS:
        changes = {"ece": spread(0.0155, 0.002), "nll": spread(0.1738, 0.002), "error": spread(0.0521, 3e-4)}
        write_result(Run(folder(runs, "dual_focal", seed)), numbers_of("dual_focal", seed, changes))
    _, claims = decide(runs)
    family = [part for name in ("C4", "C5", "C6", "C7", "C9") for part in differences(claims[name])]
    judged = [part for part in family if part.role != "reported"]
    assert len(judged) == len(holm_family()) == 11
    assert holm([part.p_value for part in judged]) == pytest.approx([part.adjusted_p_value for part in judged])
    assert {str(part.verdict) for part in judged} == {"reproduced", "not shown"}
    assert any(part.p_value < 0.05 <= part.adjusted_p_value for part in judged)
    for part in judged:
        assert (part.verdict == "reproduced") == (part.adjusted_p_value < 0.05)
        assert part.adjusted_interval[0] <= part.interval[0] <= part.interval[1] <= part.adjusted_interval[1]
    assert {str(part.verdict) for part in family if part.role == "reported"} == {"reported"}
    assert all(part.adjusted_p_value is None for part in differences(claims["C11"]))


# Which runs count


def test_labels_of_test_samples_must_be_equal(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "DRAWS", 1)
    run = Run(folder(runs, "flsd", 2))
    run.write_predictions({"test": (LOGITS, TARGET.flip(0))}, [str(i) for i in range(10)])
    with pytest.raises(ValueError, match=r"cross_entropy-seed1 and .*flsd-seed2 differ in the labels"):
        decide(runs)


def test_a_missing_run_makes_its_claims_pending_with_interim_numbers(runs: Path, tmp_path, monkeypatch) -> None:
    shutil.rmtree(folder(runs, "flsd", 5))
    _, claims = decide(runs)
    pending = {name for name, claim in claims.items() if claim.verdict == "pending"}
    assert pending == {"C2", "C4", "C5", "C6", "C9", "C11"}
    assert "flsd has 4 of 5 runs" in claims["C4"].sentence()
    against_cross_entropy, against_flsd = claims["C4"].parts
    assert against_cross_entropy.verdict == "reproduced"  # even if all that is missing were against it
    assert against_flsd.interval is not None
    assert against_flsd.adjusted_p_value is None
    family = [part for name in ("C4", "C5", "C6", "C7", "C9") for part in differences(claims[name])]
    judged = [part for part in family if part.role != "reported"]
    adjusted = holm([1.0 if part.adjusted_p_value is None else part.p_value for part in judged])
    assert [part.adjusted_p_value or 1.0 for part in judged] == pytest.approx(adjusted)
    part = claims["C2"].parts[0]
    assert part.interval == prediction_interval(list(part.values["flsd"].values()), 0.967)
    monkeypatch.chdir(tmp_path)
    command = "dualfocal train cifar10_resnet50 --set loss=flsd --set seed=5 --out runs/resnet50-flsd-seed5"
    assert command in decide(runs)[0].missing


def test_a_difference_that_is_not_shown_waits_for_the_family(runs: Path) -> None:
    for seed in SEEDS:
        changes = {"error": spread(0.0520, 4.5e-4)}
        write_result(Run(folder(runs, "dual_focal", seed)), numbers_of("dual_focal", seed, changes))
    assert decide(runs)[1]["C7"].verdict == "reproduced"
    for seed in SEEDS:
        shutil.rmtree(folder(runs, "flsd", seed))
    claim = decide(runs)[1]["C7"]
    assert claim.verdict == "pending"
    assert "the Holm family lacks runs" in claim.sentence()


@pytest.mark.parametrize(
    ("artefact", "pending"),
    [(SHIFT, {"C11"}), (PREDICTIONS, {"C9", "C11"}), (LOG, {"C10"})],
)
def test_a_missing_artefact_counts_for_its_claims_only(runs: Path, artefact: str, pending: set[str]) -> None:
    group = "dual_focal gamma 6" if artefact == LOG else "dual_focal"
    (folder(runs, group, 3) / artefact).unlink()
    _, claims = decide(runs)
    assert {name for name, claim in claims.items() if claim.verdict == "pending"} == pending


def test_the_last_epochs_must_all_be_logged(runs: Path) -> None:
    Run(folder(runs, "dual_focal gamma 6", 3)).begin_log(19)
    assert decide(runs)[1]["C10"].verdict == "pending"


def test_a_damaged_artefact_is_named(runs: Path) -> None:
    (folder(runs, "flsd", 4) / SHIFT).write_bytes(b"damaged")
    with pytest.raises(RunError, match=r"flsd-seed4/shift\.npz: severity 5 cannot be read"):
        decide(runs)


def test_runs_known_in_advance_are_left_out_of_the_second_verdict(runs: Path) -> None:
    far = {"ece": [0.03, 0.03, 0.0046, 0.00461, 0.00459]}
    for seed in SEEDS:
        write_result(Run(folder(runs, "dual_focal", seed)), numbers_of("dual_focal", seed, far))
    decided, claims = decide(runs)
    without = {claim.id: claim for claim in decided.without_known}
    assert (claims["C4"].verdict, without["C4"].verdict) == ("partly reproduced", "reproduced")
    seeds = {group: list(values) for group, values in without["C4"].parts[0].values.items()}
    assert seeds == {"dual_focal": [3, 4, 5], "cross_entropy": [2, 3, 4, 5]}
    assert list(without["C10"].parts[0].values["dual_focal gamma 6"]) == [2, 3]
    assert without["C8"].parts[0].cells()[-1] == "3/3"
    # Their noisy images were never scored, so that the claim about these does not wait for them.
    assert claims["C11"].parts == without["C11"].parts


def test_a_claim_with_too_few_other_runs_is_not_decided(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = [f"dual_focal gamma 6 seed {seed}" for seed in (1, 2)]
    monkeypatch.setitem(replication.replication_plan("cifar10"), "known_in_advance", known)
    decided, claims = decide(runs)
    assert claims["C10"].verdict == "reproduced"
    assert decided.without_known[9].verdict == "too few runs"


def test_two_runs_of_a_seed_are_refused(runs: Path) -> None:
    shutil.copytree(folder(runs, "flsd", 2), runs / "twice")
    with pytest.raises(ValueError, match=r"flsd-seed2 and .*twice are both flsd seed 2"):
        decide(runs)


def test_other_recipes_are_not_part_of_the_plan(tmp_path: Path) -> None:
    settings = ["epochs=300", "seed=6", "lr=0.2", "precision=float32", "loss.gamma=4", "loss=focal"]
    paths = [tmp_path / setting for setting in settings]
    for path in paths:
        write_run(path, [path.name], GROUPS["dual_focal"])
    decided, claims = decide(tmp_path)
    assert sorted(decided.not_in_plan) == sorted(map(str, paths))
    assert claims["C3"].parts[0].mean is None


def test_auto_counts_if_it_meant_bfloat16(tmp_path: Path) -> None:
    for seed, precision in enumerate(("bfloat16", "float32"), 1):
        sessions = [{"precision": precision}]
        write_run(tmp_path / precision, [f"seed={seed}"], GROUPS["dual_focal"], sessions=sessions)
    write_run(tmp_path / "named", ["seed=3", "precision=bfloat16", "test_each_epoch=true"], GROUPS["dual_focal"])
    decided, claims = decide(tmp_path)
    assert list(claims["C3"].parts[0].values["dual_focal"]) == [1, 3]
    assert decided.not_in_plan == (str(tmp_path / "float32"),)


def test_a_run_that_is_not_finished_is_named_and_not_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "stopped", ["seed=1"], GROUPS["dual_focal"])
    (run.path / RESULT).unlink()
    decided, claims = decide(tmp_path)
    assert decided.unfinished == (str(run.path),)
    assert claims["C3"].parts[0].mean is None


def test_controls_are_described_and_not_judged(tmp_path: Path) -> None:
    numbers = GROUPS["dual_focal"] | {"ece": 0.042}
    write_run(tmp_path / "mean", ["reduction=mean", "clip_norm=none", "seed=2"], numbers)
    write_run(tmp_path / "tf32", ["precision=tf32"], GROUPS["dual_focal"])
    decided, claims = decide(tmp_path)
    assert [control.name for control in decided.controls] == [
        "mean of the batch, no clipping",
        "TF32 instead of bfloat16",
    ]
    assert decided.controls[0].numbers["ece"] == 0.042
    assert decided.controls_table().rows[0][:3] == ["mean of the batch, no clipping", "5.17", "4.20"]
    assert claims["C3"].parts[0].mean is None
    assert [command.split("-dual_focal-")[1] for command in decided.missing[-2:]] == ["2nd-seed1", "mean_all-seed1"]


def test_commands_train_what_is_missing(tmp_path: Path) -> None:
    for number in (2, 7, 12, 17):  # one of each group
        run = planned_runs()[number]
        name, *settings = run.command.partition(" --out ")[0].removeprefix("dualfocal train ").split(" --set ")
        assert name == "cifar10_resnet50"
        write_run(tmp_path / str(number), settings, GROUPS["dual_focal"])
    missing = decide(tmp_path)[0].missing
    left = [run.name for run in planned_runs() if run.command not in missing]
    assert left == ["cross_entropy seed 3", "flsd seed 3", "dual_focal seed 3", "dual_focal gamma 6 seed 3"]


def test_folders_of_real_runs_have_the_names_of_the_plan() -> None:
    decided = decide_claims(find_runs(RESULTS))
    assert decided.not_in_plan == decided.unfinished == ()
    commands = [run.command for run in planned_runs() if run.command not in decided.missing]
    folders = {Path(command.split("--out ")[1]).name for command in commands}
    assert folders <= {path.name for path in RESULTS.iterdir()}
    assert len(folders) == len(list(RESULTS.iterdir())) - len(decided.controls)


# The command


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def command(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["paper", "replication", *arguments])
        assert ended.value.code == code
        captured = capsys.readouterr()
        return captured.err if code else captured.out

    return command


def test_json_is_the_content_of_python(runs: Path, command: Callable[..., str]) -> None:
    content = json.loads(command(str(runs), "--json"), parse_constant=pytest.fail)
    decided, _ = decide(runs)
    assert content == json.loads(json.dumps(decided.to_dict()))
    assert [claim["verdict"] for claim in content["claims"]] == [str(claim.verdict) for claim in decided.claims]
    assert content["claims"][2]["parts"][1]["values"]["dual_focal"]["4"] == pytest.approx(0.0046 + JITTER[3])
    assert content["claims"][0]["without_known"]["parts"][0]["wanted"] == {"cross_entropy": [2, 3, 4, 5]}


def test_the_command_prints_table_sentences_and_missing_trainings(
    runs: Path, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shutil.rmtree(folder(runs, "cross_entropy", 4))
    out = command(str(runs), str(runs / "flsd-seed1"))  # a folder that is named twice counts once
    lines = out.splitlines()
    assert lines[0].split("  ")[0] == "claim"
    decided, claims = decide(runs)
    assert [line for line in lines if line.startswith("C1,")] == [claims["C1"].sentence()]
    assert sum(line.startswith(f"{name}, ") for line in lines for name in claims) == 11
    assert lines[-len(decided.missing) :] == [f"  {line}" for line in decided.missing]


def test_the_default_folder_is_that_of_the_lab_wherever_one_is(
    tmp_path: Path, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = json.loads(command("--json"), parse_constant=pytest.fail)
    assert content == json.loads(command(str(RESULTS), "--json"))
    assert all("--out runs/" in line for line in content["missing"])
    assert "nowhere: holds no run folder" in command("nowhere", code=2)
