"""What is imported, and what works without the optional packages. Times are in ``benchmarks/startup.py``."""

import subprocess
import sys
from pathlib import Path

import numpy as np
from samples import draw_logits

TESTS = Path(__file__).parent


def modules_after(code: str) -> set[str]:
    """The modules that a fresh process has imported after running some code."""
    script = f"import sys\n{code}\nprint('modules:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_a_loss_imports_nothing_but_losses() -> None:
    torch_alone = modules_after("import torch")
    added = modules_after("import torch, dualfocal; dualfocal.DualFocalLoss()") - torch_alone
    ours = {name for name in added if name.startswith("dualfocal.")}
    assert {name.split(".")[1] for name in ours} <= {"losses", "kernels", "checks", "_tensors"}
    assert not {name for name in added if name.partition(".")[0] == "scipy" or name.startswith("torch._dynamo")}


def test_evaluating_a_file_imports_no_training_and_no_pictures(tmp_path: Path) -> None:
    logits, target = draw_logits(100, 3)
    np.savez(tmp_path / "a.npz", logits=logits, target=target)
    added = modules_after(
        "from dualfocal.cli import main\n"
        f"try: main(['evaluate', {str(tmp_path / 'a.npz')!r}])\n"
        "except SystemExit as end: assert not end.code"
    )
    assert not {name for name in added if name.startswith("dualfocal_lab")}
    rooms = {name.split(".")[1] for name in added if name.startswith("dualfocal.")}
    assert {"metrics", "predictions"} <= rooms
    assert not rooms & {"losses", "plots", "report"}
    heavy = {"matplotlib", "PIL", "pyarrow", "safetensors", "torchmetrics", "sklearn", "pandas"}
    assert not heavy & {name.partition(".")[0] for name in added}
    assert not added & {"torch._dynamo", "scipy.stats", "scipy.optimize", "scipy.ndimage"}


def test_the_library_works_with_three_packages() -> None:
    script = (
        "import importlib.metadata, runpy, sys\n"
        "class Missing:\n"
        "    'Only what torch, numpy and scipy bring can be imported.'\n"
        "    blocked = {'typer', 'rich', 'matplotlib', 'PIL', 'pyarrow', 'safetensors', 'packaging', 'sklearn',\n"
        "               'torchmetrics', 'pandas', 'requests', 'platformdirs', 'tensorboard', 'pytest', 'pydantic'}\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in self.blocked:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        f"runpy.run_path({str(TESTS / 'bare_install.py')!r})\n"
        "from dualfocal.__main__ import main\n"
        "sys.argv = ['dualfocal', 'evaluate', 'a.npz']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "works with torch, numpy and scipy" in done.stdout
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1:] == ['dualfocal: typer is not installed: pip install "dualfocal[cli]"']
