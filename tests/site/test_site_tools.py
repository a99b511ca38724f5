"""The tools that need mkdocs, griffe and latex2mathml: formulas, docstrings, generated pages."""

import doctest
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="run make docs")
pytest.importorskip("latex2mathml", reason="run make docs")
sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "tools"))

import docstrings
import generated
import hooks
import measurements


@pytest.mark.parametrize("module", [docstrings, generated, hooks, measurements])
def test_doctests(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def test_formulas_become_mathml_inline_and_displayed() -> None:
    page = hooks.mathml(
        r'<p><span class="arithmatex">\(\log p &lt; 1\)</span></p><div class="arithmatex">\[\frac{a}{b}\]</div>'
    )
    assert page.count("<math") == 2
    assert 'display="inline"' in page
    assert 'display="block"' in page
    assert '<mi>log</mi><mspace width="0.17em"/><mi>p</mi>' in page
    assert "<mfrac><mrow><mi>a</mi></mrow><mrow><mi>b</mi></mrow></mfrac>" in page
    assert "arithmatex" not in page


@pytest.mark.parametrize(
    ("role", "path", "target", "text"),
    [
        (":func:`~dualfocal.metrics.ece`", "dualfocal.losses.x", "dualfocal.metrics.ece", "ece"),
        (
            ":meth:`Engine.train <dualfocal_lab.study.Engine.train>`",
            "a.b",
            "dualfocal_lab.study.Engine.train",
            "Engine.train",
        ),
        (":func:`ece`", "dualfocal.metrics.calibration.mce", "dualfocal.metrics.ece", "ece"),
        (":meth:`load`", "dualfocal_lab.runs.run.Run.save", "dualfocal_lab.runs.Run.load", "load"),
        (":meth:`load`", "dualfocal_lab.runs.run.Run", "dualfocal_lab.runs.Run.load", "load"),
        (":class:`Recipe`", "dualfocal_lab.runs.run.Run.save", "dualfocal_lab.runs.Recipe", "Recipe"),
        (":func:`find_runs`", "dualfocal_lab.runs.run.Run", "dualfocal_lab.runs.find_runs", "find_runs"),
    ],
)
def test_roles_become_links(role: str, path: str, target: str, text: str) -> None:
    expected = f'<autoref optional identifier="{target}"><code>{text}</code></autoref>'
    assert docstrings.to_markdown(role, path) == expected


def test_doctests_become_code_blocks() -> None:
    text = "Text.\n\n>>> f(1)\n2\n>>> for i in x:\n...     print(i)\n1\n\nMore text."
    assert docstrings.to_markdown(text) == (
        "Text.\n\n```pycon\n>>> f(1)\n2\n>>> for i in x:\n...     print(i)\n1\n```\n\nMore text."
    )


def test_every_public_name_and_command_has_a_place() -> None:
    pages = dict(generated.pages())
    assert "DualFocalLoss" in pages["api/losses.md"]
    assert "[`evaluate`][dualfocal.metrics.evaluate]" in pages["api/index.md"]
    assert {"api/metrics.md", "api/integrations.sql.md", "commands/evaluate.md", "lab/results/runs.md"} <= pages.keys()
    assert "## dualfocal paper reproduce" in pages["commands/paper.md"]
