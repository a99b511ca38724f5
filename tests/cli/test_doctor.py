"""`dualfocal doctor`: what is missing, what is broken, and how it says so."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dualfocal import doctor, kernels
from dualfocal._trials import FAILED, OK, UNUSED, Trial, try_calibrator, try_kernels, try_loss
from dualfocal.data.sources import OFFICIAL
from dualfocal.doctor import Device, Unmet, diagnose

CPU_ONLY = not torch.cuda.is_available()


@pytest.fixture
def requirements(monkeypatch):
    """Replace the metadata of the package by extras and requirements of our own."""

    def replace(*lines: str, extras: tuple[str, ...] = ()) -> None:
        message = importlib.metadata.metadata("pytest")
        monkeypatch.setattr(message, "get_all", lambda name: list(extras))
        monkeypatch.setattr(importlib.metadata, "metadata", lambda name: message)
        monkeypatch.setattr(importlib.metadata, "requires", lambda name: list(lines))

    replace()
    return replace


# What is there


def test_a_healthy_installation_ends_with_one_sentence(run, requirements) -> None:
    out, err = run("doctor")
    assert out.splitlines()[-1] == "Everything that is needed works."
    assert err == ""
    assert f"torch         {torch.__version__}" in out


@pytest.mark.skipif(not CPU_ONLY, reason="there is a GPU")
def test_without_a_gpu_one_line_says_why_the_kernels_are_not_used(run, requirements) -> None:
    [line] = [line for line in run("doctor")[0].splitlines() if "kernel" in line]
    assert line.split(None, 2)[:2] == ["Triton", "kernels"]
    assert "not used  there is no CUDA GPU" in line


def test_json_has_everything_and_nothing_else_is_printed(record, requirements) -> None:
    requirements('no-such-package>=2; extra == "ray"', extras=("ray",))
    content = record("doctor")
    assert content["ok"] is True
    assert content["problems"] == []
    assert content["versions"]["torch"] == torch.__version__
    assert content["devices"][0]["name"] == "cpu"
    assert [trial["state"] for trial in content["trials"][:2]] == [OK, OK]
    assert [item["name"] for item in content["data"]] == list(OFFICIAL)
    assert content["extras"][0]["unmet"] == [{"name": "no-such-package", "needed": ">=2", "installed": None}]


def test_data_sets_are_found_where_they_are_looked_for(record, requirements) -> None:
    Path("mine/cifar-10-batches-bin").mkdir(parents=True)
    content = record("doctor", "--data-root", "mine")
    data = {item["name"]: item for item in content["data"]}
    assert data["cifar10"]["path"] == "mine/cifar-10-batches-bin"
    assert data["cifar10"]["remedy"] == ""
    assert data["cifar100"] == {
        "name": "cifar100",
        "path": None,
        "download_bytes": 168_513_733,
        "remedy": "dualfocal data fetch cifar100 --data-root mine",
    }
    assert "20news-19997.tar.gz" in data["20newsgroups"]["remedy"]
    assert data["digits"]["path"] == "comes with scikit-learn"
    assert content["folder"]["path"] == "mine"
    assert content["folder"]["writable"] is True
    assert [path.name for path in Path("mine").iterdir()] == ["cifar-10-batches-bin"]  # nothing is left behind


def test_the_environment_variable_is_named_as_the_source_of_the_folder(run, requirements, monkeypatch) -> None:
    monkeypatch.setenv("DUALFOCAL_DATA", "elsewhere")
    assert "Data sets in elsewhere (DUALFOCAL_DATA; writable, " in run("doctor")[0]


def test_a_file_in_place_of_the_data_folder_is_refused(refused, requirements) -> None:
    Path("file").write_text("")
    assert "the data root must be a folder, but file is a file" in refused("doctor", "--data-root", "file")


def test_a_folder_that_cannot_be_written_is_named_but_is_no_problem(run, record, requirements) -> None:
    Path("file").write_text("")
    assert record("doctor", "--data-root", "file/data")["folder"] == {
        "path": "file/data",
        "chosen_by": "--data-root",
        "writable": False,
        "free_bytes": None,
    }
    assert "Data sets in file/data (--data-root; not writable; DUALFOCAL_DATA can name" in run(
        "doctor", "--data-root", "file/data"
    )[0].replace("\n", " ")


# What is missing


def test_a_missing_extra_is_no_problem_and_has_its_command(run, requirements) -> None:
    requirements(
        "torch>=2",
        'no-such-package>=2; extra == "ray"',
        'numpy>=99; extra == "hf"',
        'numpy>=1; extra == "sql"',
        extras=("ray", "hf", "sql", "dev"),
    )
    lines = {line.split()[0]: line for line in run("doctor")[0].partition("Extras\n")[2].splitlines() if line}
    assert 'pip install "dualfocal[ray]"  no no-such-package' in lines["ray"]
    assert 'pip install "dualfocal[hf]"   numpy is' in lines["hf"]
    assert "not >=99" in lines["hf"]
    assert "installed" in lines["sql"]
    assert "dev" not in lines  # for developers only


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("numpy>=99", 'not >=99: pip install "numpy>=99"'),
        ("no-such-package", 'no no-such-package: pip install "no-such-package"'),
    ],
)
def test_a_requirement_that_is_not_met_is_a_problem(run, requirements, line, problem) -> None:
    requirements(line)
    out, err = run("doctor", code=1)
    assert "Everything" not in out
    assert err.startswith("dualfocal: ")
    assert problem in err


def test_requirements_of_other_systems_do_not_count(requirements) -> None:
    requirements("no-such-package; platform_system == 'Nowhere'")
    assert diagnose().unmet == ()


def test_without_metadata_there_are_no_extras_to_list(requirements, monkeypatch) -> None:
    def not_installed(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "metadata", not_installed)
    monkeypatch.setattr(importlib.metadata, "requires", not_installed)
    diagnosis = diagnose()
    assert diagnosis.extras == ()
    assert diagnosis.problems == []


def test_the_extras_of_the_package_have_a_description() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {*doctor.FEATURES, *doctor.FOR_DEVELOPERS} == set(project["optional-dependencies"])


def test_a_package_that_cannot_be_imported_is_one_line() -> None:
    script = "import sys; sys.modules['torch'] = None; from dualfocal.cli import main; main(['doctor'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("dualfocal: a package that is needed cannot be imported: ")
    assert line.endswith("pip install --force-reinstall torch")


# What is broken


def test_a_broken_kernel_is_a_problem(run, requirements, monkeypatch) -> None:
    """As on a machine with a GPU: its kernels are tried, in this test with an answer of our own."""
    gpu = Device("cuda:0", "NVIDIA H200", 150_000_000_000, "9.0")
    monkeypatch.setattr(doctor, "_devices", lambda: [gpu])
    monkeypatch.setattr(kernels, "available", lambda: True)
    monkeypatch.setattr(doctor, "try_loss", lambda device: Trial(f"loss on {device}", OK, ""))
    monkeypatch.setattr(
        doctor, "try_kernels", lambda device: [Trial(f"loss kernel on {device}", FAILED, "no compiler")]
    )
    out, err = run("doctor", code=1)
    assert err == "dualfocal: loss kernel on cuda:0: no compiler\n"
    assert "150.0 GB" in out
    assert "9.0" in out
    content = json.loads(run("doctor", "--json", code=1)[0])
    assert content["ok"] is False
    assert content["problems"] == ["loss kernel on cuda:0: no compiler"]


def test_a_gpu_without_triton_is_told_how_to_get_it(requirements, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "_devices", lambda: [Device("cuda:0", "NVIDIA H200", 1, "9.0")])
    monkeypatch.setattr(doctor, "try_loss", lambda device: Trial(f"loss on {device}", OK, ""))
    monkeypatch.setattr(kernels, "available", lambda: False)
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    [*_, trial] = diagnose().trials
    assert trial.state == UNUSED
    assert "pip install triton" in trial.detail


def test_kernels_match_pytorch() -> None:
    """Without a GPU in the interpreter of triton."""
    pytest.importorskip("triton")
    trials = list(try_kernels("cpu" if CPU_ONLY else "cuda"))
    assert [(trial.state, trial.detail) for trial in trials] == [(OK, "matches PyTorch")] * 2


def test_a_kernel_that_raises_or_miscalculates_is_found(monkeypatch) -> None:
    pytest.importorskip("triton")
    from dualfocal.kernels import confidence, modulated

    scan_rows, loss_and_gradient = confidence.scan_rows, modulated.loss_and_gradient

    def wrong(logits, target, *, scores):
        rows = scan_rows(logits, target, scores=scores)
        return rows._replace(nll=rows.nll * 1.5)

    def broken(rows, grad):
        raise RuntimeError("no kernel image is available\nfor execution on the device")

    monkeypatch.setattr(confidence, "scan_rows", wrong)
    monkeypatch.setattr(modulated, "loss_and_gradient", broken)
    loss, scan = try_kernels("cpu" if CPU_ONLY else "cuda")
    assert (loss.state, loss.detail) == (FAILED, "RuntimeError: no kernel image is available")
    assert (scan.state, scan.detail) == (FAILED, "the NLL differs by 50.0%")
    monkeypatch.setattr(modulated, "loss_and_gradient", lambda rows, grad: loss_and_gradient(rows, grad) * torch.nan)
    assert next(iter(try_kernels("cpu" if CPU_ONLY else "cuda"))).detail == "the loss differs by nan%"


def test_a_loss_or_a_calibrator_that_miscalculates_is_found(monkeypatch) -> None:
    from dualfocal import calibrators, losses

    real = losses.dual_focal_loss
    scaled = lambda logits, target, *, impl: real(logits, target, impl=impl) * (1 if impl == "torch" else 1.01)  # noqa: E731
    monkeypatch.setattr(losses, "dual_focal_loss", scaled)
    assert try_loss("cpu") == Trial("loss on cpu", FAILED, "the gradient differs by 1.0%")

    class Stuck(calibrators.TemperatureScaling):
        def fit(self, logits, target):
            self.temperature = torch.tensor(1.5)
            return self

    monkeypatch.setattr(calibrators, "TemperatureScaling", Stuck)
    assert try_calibrator().detail == "the temperature differs by 66.7%"


def test_unmet_requirements_are_told_in_words() -> None:
    assert str(Unmet("numpy", ">=2", "1.26")) == "numpy is 1.26, not >=2"
    assert str(Unmet("ray", ">=2", None)) == "no ray"
