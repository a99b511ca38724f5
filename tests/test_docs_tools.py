"""The tools that run and build the documentation: pages are parsed, run and compared with what they show."""

import doctest
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "tools"))

import links  # noqa: E402
import run_pages  # noqa: E402

PAGE = """
<!-- run
start = 3
-->
```python
# numbers.py
total = start + 1
```
<!-- not run: needs a GPU -->

    $ dualfocal train digits --device cuda

Text.

    $ python -c "print(1 / 8)"        # a comment
    0.25

- ```console
  $ python -c "raise SystemExit(3)"   # exit code 3
  ```

```toml
[project]
```
"""


def test_blocks_are_found_in_order_with_their_lines() -> None:
    blocks = run_pages.parse(PAGE)
    assert [(block.kind, block.line, block.runs) for block in blocks] == [
        ("python", 3, True),
        ("python", 6, True),
        ("console", 11, False),
        ("console", 15, True),
        ("console", 19, True),
        ("other", 23, False),
    ]
    assert blocks[2].reason == "needs a GPU"
    assert blocks[4].code.startswith("$ python")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- not run: -->\n\n    $ make", "line 1: a mark is one line with a reason"),
        ("<!-- not run: needs a GPU -->\nText.", "line 1: no block follows the mark"),
        ("\n```python\nx = 1\n", "line 2: ````python` does not end"),
    ],
)
def test_marks_and_blocks_that_are_incomplete_are_refused(text: str, message: str) -> None:
    with pytest.raises(run_pages.PageError, match=message):
        run_pages.parse(text)


def test_commands_have_the_output_below_them_and_their_exit_code() -> None:
    block = run_pages.Block("console", 7, "$ dualfocal a \\\n    --b\nout\nput\n$ dualfocal c  # exit code 2: a gate")
    first, second = run_pages.commands(block)
    assert (first.line, first.words, first.expected, first.exit_code) == (7, ["dualfocal", "a", "--b"], "out\nput", 0)
    assert (second.line, second.words, second.expected, second.exit_code) == (11, ["dualfocal", "c"], "", 2)


@pytest.mark.parametrize(
    ("expected", "output", "missing"),
    [
        ("ECE [%]  4.35  0.15", "12 samples\n┃ ECE [%] ┃ 11.20 ┃\n0.3 ┃\n", ""),
        ("first\n...\nlast one", "first\nsecond\nlast\none", ""),
        ("first\nlast", "first\nsecond\nlast", "last"),
        ("Over-confident: 4 points", "Calibrated: 4 points", "Over-confident: 4 points"),
        ("wrote a...b", "wrote a1b", ""),
    ],
)
def test_outputs_may_differ_in_numbers_and_wrapping_only(expected: str, output: str, missing: str) -> None:
    assert run_pages.difference(expected, output) == missing


def test_a_page_runs_in_one_namespace_and_one_folder(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("Text.", "```python\nimport numbers_of\n```\n").replace("numbers.py", "numbers_of.py"))
    assert "NameError: name 'start' is not defined" in run_pages.run_page(page)  # a file does not know the namespace
    page.write_text(PAGE)
    assert run_pages.run_page(page) == ""
    page.write_text(PAGE.replace("0.25", "quarter"))
    assert "line 15: the output differs from the page; expected here: quarter" in run_pages.run_page(page)
    page.write_text(PAGE.replace("exit code 3", "as expected"))
    assert "line 19: exit code 3, expected 0" in run_pages.run_page(page)
    page.write_text("    $ pip install dualfocal\n")
    assert "line 1: pip is not run" in run_pages.run_page(page)


def test_readers_see_neither_marks_nor_set_up_and_commands_in_fenced_blocks() -> None:
    page = run_pages.visible(PAGE)
    assert "start = 3" not in page
    assert "<!--" not in page
    assert '\n```console\n$ python -c "print(1 / 8)"        # a comment\n0.25\n```\n' in page
    assert "\n```python\n# numbers.py\n" in page


# Links: the same in the repository, for GitHub, and in the site


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("docs/speed.md", "[t](../benchmarks/results/loss_cpu.csv)", "[t](benchmarks/results/loss_cpu.md)"),
        ("docs/study.md", "[t](../examples/swap_the_loss.py)", "[t](examples/swap_the_loss.md)"),
        ("docs/study.md", "[`t`](clusters.md#slurm)", "[`t`](clusters.md#slurm)"),
        ("docs/extending.md", "[t](../SECURITY.md)", "[t](SECURITY.md)"),
        ("lab/results/README.md", '<img src="../../docs/cifar10-sheet.png">', '<img src="../../cifar10-sheet.png">'),
        ("lab/results/README.md", "[t](../../docs/paper.md)", "[t](../../paper.md)"),
        ("lab/results/README.md", "[t](cifar10/resnet50-flsd-seed1)", "[t](runs.md#cifar10-resnet50-flsd-seed1)"),
        ("SECURITY.md", "[t](README.md)", "[t](index.md)"),
        ("CONTRIBUTING.md", '<a href="docs/train.md">t</a>', '<a href="train.html">t</a>'),
        ("docs/study.md", "`[t](../SECURITY.md)`", "`[t](../SECURITY.md)`"),
        ("docs/study.md", "[t](https://arxiv.org/abs/2305.13665)", "[t](https://arxiv.org/abs/2305.13665)"),
        ("docs/study.md", "[t](missing.md)", "[t](missing.md)"),  # mkdocs reports it
    ],
)
def test_links_lead_to_the_same_place_in_the_site(page: str, link: str, expected: str) -> None:
    assert links.rewrite(link, page) == expected


def test_linked_files_are_known_by_their_path_in_the_repository() -> None:
    text = "[a](../SECURITY.md) [b](train.md#x) [c](https://b.org/x.md) [d](missing.md)"
    assert links.targets(text, "docs/study.md") == {"SECURITY.md", "docs/train.md"}


@pytest.mark.parametrize("module", [run_pages, links])
def test_doctests(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


def test_python_must_raise_the_error_that_it_states() -> None:
    def run(code: str) -> None:
        run_pages.run_python(run_pages.Block("python", 5, code), Path("page.md"), {})

    run("int('x')  # raises ValueError")
    with pytest.raises(run_pages.PageError, match="line 5: the block does not raise ValueError"):
        run("int('1')  # raises ValueError")
    with pytest.raises(ZeroDivisionError):
        run("1 / 0  # raises ValueError")
    with pytest.raises(ValueError, match="invalid literal"):
        run("int('x')")
