"""Pages and help texts: links, commands, options and imports exist, and the examples of docs/extending.md run."""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from case_loops import for_each

from dualfocal.cli import full_app, main
from dualfocal_lab.runs import find_runs
from dualfocal_lab.train import result as train_result

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("**/*.md"),
        *(ROOT / "lab").glob("*.md"),
        *(ROOT / "lab" / "results").glob("**/*.md"),
        *ROOT.glob("benchmarks/*.md"),
    ]
)
COMMANDS = typer.main.get_command(full_app())


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes from headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def help_texts(command: Any, name: str = "dualfocal") -> Iterator[tuple[str, str]]:
    yield name, command.help or ""
    for short, other in getattr(command, "commands", {}).items():
        yield from help_texts(other, f"{name} {short}")


TEXTS = {named(page): page.read_text(encoding="utf-8") for page in PAGES} | {
    f"{name} --help": text for name, text in help_texts(COMMANDS)
}


def test_there_are_pages_and_commands() -> None:
    assert {"README.md", "docs/train.md", "lab/results/README.md"} <= TEXTS.keys()
    assert {"dualfocal evaluate --help", "dualfocal paper reproduce --help"} <= TEXTS.keys()


def test_the_one_line_swap_says_when_it_does_harm() -> None:
    _, _, swap = TEXTS["README.md"].partition("criterion = DualFocalLoss(")
    below, _, _ = swap.partition("\n## ")
    for words in ("under-confident", "epochs", "`evaluate`", "temperature"):
        assert words in below


def test_the_gate_and_its_error_have_one_name() -> None:
    """An ECE below a limit whose gate fails looks like a contradiction: both are calibration errors."""
    assert "--fail-over" in TEXTS["README.md"]
    for name, text in TEXTS.items():
        assert "debiased error" not in text, name
        for gate in re.findall(r"--fail-over.*?certainly above", text, re.S):
            assert "debiased RMS error" in gate, name


@for_each(page=PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in [*re.findall(r"\]\(([^)\s]+)\)", text), *re.findall(r'src="([^"]+)"', text)]:
        if "://" in target:
            continue
        place, _, anchor = target.partition("#")
        linked = (page.parent / place).resolve() if place else page
        assert linked.exists(), target
        assert not anchor or linked.suffix != ".md" or anchor in anchors(linked), target


@for_each(name=TEXTS)
def test_commands_and_options_exist(name: str) -> None:
    for line in re.findall(r"^ +(?:\$ )?(?:torchrun \S+ -m )?(dualfocal [a-z].*)$", TEXTS[name], re.M):
        words = shlex.split(line, comments=True)[1:]
        command: Any = COMMANDS
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert not hasattr(command, "commands"), f"{line}: no such command"
        known = {spelling for option in command.params for spelling in option.opts} | {"--help"}
        assert {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)} <= known, line


@for_each(page=PAGES)
def test_imported_names_exist(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dualfocal"):
                exec(ast.unparse(node), {})  # a name may be a submodule, which is no attribute before it is imported


def test_shell_scripts_are_valid() -> None:
    scripts = [
        block
        for page in PAGES
        for block in re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    ]
    assert any("SLURM_ARRAY_TASK_ID" in script for script in scripts)
    for script in scripts:
        checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
        assert (checked.returncode, checked.stderr) == (0, ""), script


# docs/extending.md: every example is run, except those of loggers, which tests/integrations runs.

EXTENDING = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files of the page."""
    blocks = re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```", EXTENDING, re.M | re.S)
    for module, code in blocks:
        (tmp_path / f"{module}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train_result, "metrics_of", lambda predictions: ({}, {}))
    yield tmp_path
    for module, _ in blocks:
        sys.modules.pop(module, None)


def test_commands_of_the_page_on_extending_run(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = [shlex.split(line) for line in dict.fromkeys(re.findall(r"^    \$ dualfocal (.*)$", EXTENDING, re.M))]
    trainings = [words for words in commands if words[0] == "train"]
    assert len(trainings) == len(commands) - 1 == 6
    for number, words in enumerate(trainings):
        out = f"runs/{number}"
        with pytest.raises(SystemExit) as ended:
            main([*words, "--set", "epochs=1", "--out", out])
        output = capsys.readouterr()
        assert ended.value.code == 0, (words, output.err)
        assert ("validation error" in output.out) == ("my_callbacks:PrintError" in words)
    runs = find_runs(Path("runs"))
    assert len(runs) == len(trainings)
    recipes = [run.recipe for run in runs]
    assert [recipe.loss for recipe in recipes].count("my_losses:Tilted") == 1
    assert {recipe.optimizer for recipe in recipes} == {"sgd", "adamw", "rmsprop", "my_optimizers:SignSGD"}
    assert {recipe.data for recipe in recipes} == {"digits", "my_data:spirals"}


def test_python_of_the_page_on_extending_runs(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    [code] = re.findall(r"^```python\n(from .*?)^```", EXTENDING, re.M | re.S)
    exec(code, {})
    assert "epoch 1: validation error" in capsys.readouterr().out
    assert list(Path("runs/with-callbacks/tensorboard").iterdir())
