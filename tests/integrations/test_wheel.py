"""The wheels, as users get them: built, installed into empty environments outside the checkout, and used there.

Needs pip's package index. The tests of extras come last, because they add to the environment.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copy2, copytree, ignore_patterns
from typing import Any, NamedTuple

import numpy as np
import pytest
import typer

import dualfocal
from dualfocal.cli import full_app

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
SOURCE = ("src", "lab")
LAB = [("train",), ("study",), ("runs",), ("data",), ("paper",)]  # commands
SOURCE_FILES = ("*.md", "pyproject.toml", "MANIFEST.in", "CITATION.cff", "LICENSE")
OPTIONAL = (
    "torchmetrics",
    "triton",
    "ray",
    "duckdb",
    "psycopg",
    "lightning",
    "pytorch_lightning",
    "onnx",
    "onnxruntime",
    "onnxscript",
)

if os.environ.get("DUALFOCAL_INTEGRATIONS") != "required":
    pytest.importorskip("build", reason="make test-integrations installs it")


class Dist(NamedTuple):
    """What `python -m build` makes of the library, and of the lab."""

    sdist: Path
    wheel: Path
    lab: Path


class Installation:
    """An environment with the wheel, and an empty folder to work in."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.wheel, self.bin, self.work = wheel, folder / "venv" / "bin", folder / "work"
        venv.create(folder / "venv", with_pip=True)
        self.work.mkdir()
        keep = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "REQUESTS_"))}
        keep |= {name.upper(): os.environ[name] for name in ("http_proxy", "https_proxy") if name in os.environ}
        self.environment = keep | {
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "COLUMNS": "120",
            "OMP_NUM_THREADS": "1",
        }

    def run(self, *command: object, code: int = 0) -> str:
        """Run a command of the environment, check its exit code, and return its stdout, or stderr if it fails."""
        name, *arguments = map(str, command)
        words = [str(self.bin / name), *arguments]
        done = subprocess.run(words, cwd=self.work, env=self.environment, capture_output=True, text=True)
        assert done.returncode == code, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stderr if code else done.stdout

    def pip_install(self, extra: str = "", *options: str) -> str:
        """Install the wheel, with an extra."""
        wheel = f"{self.wheel}[{extra}]" if extra else self.wheel
        constraints = ROOT / "constraints.txt"
        return self.run("python", "-m", "pip", "install", "--quiet", "--no-compile", *options, "-c", constraints, wheel)


def built(source: Path, out: Path, *options: str) -> None:
    command = [sys.executable, "-m", "build", "--outdir", str(out), *options, str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, because building writes into it."""
    copy = tmp_path_factory.mktemp("source")
    for folder in SOURCE:
        copytree(ROOT / folder, copy / folder, symlinks=True, ignore=ignore_patterns("__pycache__", "*.egg-info"))
    for pattern in SOURCE_FILES:
        for path in ROOT.glob(pattern):
            copy2(path, copy)
    return copy


@pytest.fixture(scope="module")
def dist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Dist:
    """The sdist, and the wheel that is built from it."""
    out = tmp_path_factory.mktemp("dist")
    built(source, out)
    built(source / "lab", out, "--wheel")
    [sdist], [wheel], [lab] = out.glob("*.tar.gz"), out.glob("dualfocal-*.whl"), out.glob("dualfocal_lab-*.whl")
    return Dist(sdist, wheel, lab)


@pytest.fixture(scope="module")
def installation(dist: Dist, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel with its command line in an environment that had nothing but pip, and a file of predictions."""
    made = Installation(tmp_path_factory.mktemp("user"), dist.wheel)
    made.pip_install("cli")
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((300, 3))
    target = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    np.savez(made.work / "p.npz", logits=logits, target=target)
    rows = [f"{a:.6f},{b:.6f},{c:.6f},{t}" for (a, b, c), t in zip(logits, target, strict=True)]
    (made.work / "p.csv").write_text("\n".join(["logit_0,logit_1,logit_2,target", *rows]) + "\n")
    return made


# What is in the files


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(dist: Dist) -> None:
    src = ROOT / "src"
    files = [path for path in (src / "dualfocal").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    with zipfile.ZipFile(dist.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == {path.relative_to(src).as_posix() for path in files}
    for name in ("py.typed", "report/page/"):
        assert any(entry.startswith(f"dualfocal/{name}") for entry in names), name


def test_the_metadata_are_those_of_the_project(dist: Dist) -> None:
    with zipfile.ZipFile(dist.wheel) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        head, _, body = wheel.read(name).decode().partition("\n\n")
        assert any(name.endswith("/LICENSE") for name in wheel.namelist())
    assert f"\nVersion: {dualfocal.__version__}\n" in head
    assert re.findall(r"^Provides-Extra: (.*)$", head, re.M) == list(EXTRAS)
    assert body == (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_sdist_holds_the_library_and_builds_the_same_wheel(source: Path, dist: Dist, tmp_path: Path) -> None:
    with tarfile.open(dist.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE"} <= names
    assert {name.partition("/")[0] for name in names if "/" in name} == {"src"}
    built(source, tmp_path, "--wheel")  # straight from the source, not by way of the sdist
    [direct] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(direct) as one, zipfile.ZipFile(dist.wheel) as other:
        assert {name: one.read(name) for name in one.namelist()} == {
            name: other.read(name) for name in other.namelist()
        }


# The wheel at work


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, other in getattr(command, "commands", {}).items():
        yield from commands(other, (*words, name))


def test_every_command_has_help(installation: Installation) -> None:
    tree = [words for words in commands(typer.main.get_command(full_app())) if words[:1] not in LAB]
    assert ("evaluate",) in tree
    for words in tree:
        assert f"Usage: dualfocal {' '.join(words)}".strip() in installation.run("dualfocal", *words, "--help")
    assert installation.run("dualfocal", "--version") == f"dualfocal {dualfocal.__version__}\n"


def test_every_module_and_public_name_can_be_imported_from_the_environment(installation: Installation) -> None:
    script = f"""
import importlib, pkgutil, sys, dualfocal
for module in pkgutil.walk_packages(dualfocal.__path__, "dualfocal."):
    if module.name == "dualfocal.__main__":
        continue
    try:
        loaded = importlib.import_module(module.name)
        for name in getattr(loaded, "__all__", ()):
            getattr(loaded, name)
    except ImportError as error:
        optional = (error.name or "").partition(".")[0] in {OPTIONAL} or 'pip install "dualfocal[' in str(error)
        assert optional, (module.name, error)
for name in dualfocal.__all__:
    getattr(dualfocal, name)
outside = [m.__file__ for m in sys.modules.values() if (getattr(m, "__file__", None) or "").startswith({str(ROOT)!r})]
assert not outside, outside
print(dualfocal.__file__)
"""
    place = Path(installation.run("python", "-c", script).strip())
    assert installation.bin.parent in place.parents


def test_commands_of_the_lab_say_what_to_install(installation: Installation) -> None:
    for (name,) in LAB:
        assert f"{name} is a command of dualfocal-lab" in installation.run("dualfocal", name, code=2)
    assert "study" not in installation.run("dualfocal", "--help")


def test_every_command_works_without_the_lab(installation: Installation) -> None:
    installation.run("dualfocal", "evaluate", "p.csv", "--calibrate", "temperature", "--plot", "p.png")
    installation.run("dualfocal", "calibrate", "p.npz", "--out", "c.npz")
    installation.run("dualfocal", "apply", "c.npz", "p.npz", "--out", "q.parquet")
    installation.run("dualfocal", "evaluate", "q.parquet")
    installation.run("dualfocal", "apply", "c.npz", "p.npz", "--out", "q.npz")
    installation.run("dualfocal", "compare", "p.npz", "q.npz")
    installation.run("dualfocal", "report", "p.npz", "q.npz", "-o", "both.html")
    installation.run("dualfocal", "monitor", "state.json", "p.npz", "--time", "day 1")


@pytest.fixture(scope="module")
def laboratory(dist: Dist, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Both wheels in an environment."""
    made = Installation(tmp_path_factory.mktemp("researcher"), dist.lab)
    made.pip_install("", f"{dist.wheel}[cli]")
    return made


def test_replication_and_verification_find_their_data(laboratory: Installation) -> None:
    assert "22 of 27 published numbers follow" in " ".join(laboratory.run("dualfocal", "paper", "verify").split())
    assert "C11" in laboratory.run("dualfocal", "paper", "replication")


def test_the_demo_runs(laboratory: Installation) -> None:
    installation = laboratory
    options = ("--losses", "cross_entropy,dual_focal", "--seeds", "0", "--set", "epochs=2", "--jobs", "1")
    assert "dual_focal" in installation.run("dualfocal", "study", *options, "--out", "demo")
    runs = [f"demo/runs/{loss}-seed0" for loss in ("cross_entropy", "dual_focal")]
    out = installation.run(
        "dualfocal", "evaluate", runs[0], "--calibrate", "temperature,vector", "--plot", "demo/calibrated.png"
    )
    assert "uncalibrated" in out
    installation.run("dualfocal", "report", *runs, "-o", "demo/report.html")
    demo = installation.work / "demo"
    assert list(json.loads((demo / "study.json").read_text())["entries"]) == ["cross_entropy", "dual_focal"]
    assert (demo / "calibrated.png").read_bytes().startswith(b"\x89PNG")
    assert "dual_focal-seed0" in (demo / "report.html").read_text(encoding="utf-8")


def test_info_names_missing_extras(installation: Installation) -> None:
    content = json.loads(installation.run("dualfocal", "info", "--json"))
    assert content["versions"]["torch"].startswith("2.")
    assert {"onnx", "ray", "sql"} <= {extra for extra, missing in content["extras"].items() if missing}


def test_without_an_extra_the_error_names_it(installation: Installation) -> None:
    message = installation.run("dualfocal", "evaluate", "--sql", "SELECT * FROM 'p.csv'", code=2)
    assert 'pip install "dualfocal[sql]"' in message
    assert len(message.splitlines()) == 1


# Extras


def cli(user: Installation) -> None:
    assert "ECE" in user.run("dualfocal", "evaluate", "p.csv")


def sklearn(user: Installation) -> None:
    script = "from dualfocal.integrations.sklearn import ProbabilityCalibrator; print(ProbabilityCalibrator())"
    assert "ProbabilityCalibrator()" in user.run("python", "-c", script)


def torchmetrics(user: Installation) -> None:
    script = """
import torch
from dualfocal.metrics import ExpectedCalibrationError
metric = ExpectedCalibrationError()
metric.update(torch.tensor([[9.0, 0.0], [9.0, 0.0]]), torch.tensor([0, 1]))
print(round(float(metric.compute()), 2))
"""
    assert user.run("python", "-c", script) == "0.5\n"


def sql(user: Installation) -> None:
    assert "ECE" in user.run("dualfocal", "evaluate", "--sql", "SELECT * FROM 'p.csv'")


def ray(user: Installation) -> None:
    user.run("python", "-c", "import ray, dualfocal.integrations.ray_data")


def hf(user: Installation) -> None:
    script = """
from transformers import EvalPrediction
from dualfocal.integrations.hf import compute_metrics
print(compute_metrics(EvalPrediction(predictions=[[2.0, 0.0], [0.0, 1.0]], label_ids=[0, 0]))["error"])
"""
    assert user.run("python", "-c", script) == "0.5\n"


def lightning(user: Installation) -> None:
    script = """
from lightning.pytorch import Callback
from dualfocal.integrations.lightning import CalibrationCallback
print(isinstance(CalibrationCallback(), Callback))
"""
    assert user.run("python", "-c", script).splitlines()[-1] == "True"


def onnx(user: Installation) -> None:
    script = """
import torch
from dualfocal import TemperatureScaling
from dualfocal.integrations.onnx import export_onnx
logits = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
export_onnx(TemperatureScaling().fit(2 * logits, logits.argmax(1).roll(1)), logits, "t.onnx")
"""
    user.run("python", "-c", script)
    assert (user.work / "t.onnx").stat().st_size > 0


FEATURES: tuple[Callable[[Installation], None], ...] = (cli, sklearn, torchmetrics, sql, hf, lightning, onnx, ray)


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.__name__)
def test_an_extra_installs_and_its_feature_runs(installation: Installation, feature) -> None:
    extra = feature.__name__
    installation.pip_install(extra)
    feature(installation)
    assert json.loads(installation.run("dualfocal", "info", "--json"))["extras"][extra] == []


def test_every_extra_for_users_is_tested() -> None:
    assert {feature.__name__ for feature in FEATURES} == EXTRAS.keys() - {"all", "dev", "docs", "integrations"}


def test_the_extra_of_the_documentation_can_be_resolved(installation: Installation) -> None:
    """It is large, and `make docs` installs it: pip only says what it would install."""
    installation.pip_install("docs", "--dry-run")
