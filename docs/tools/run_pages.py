"""Run the code blocks and commands of the documentation, and compare what the commands print with the page.

    python docs/tools/run_pages.py [PAGE...]     default: README.md and docs/**/*.md

The blocks of a page run in page order, in one namespace and one temporary folder, which has `lab/results/`:

- a fenced `python` block (one that begins with the comment `# NAME.py` is also saved as that file; one with the comment
  `# raises ValueError` must raise this error);
- lines that start with `$ ` in an indented block or in a fenced `console` block. The lines below a command are its
  expected output: numbers, white space and frames may differ, and `...` matches anything. A command must exit with 0,
  or with the number of its comment `# exit code 3`;
- `<!-- run`, lines of Python, `-->`: set-up that the reader does not see;
- `<!-- not run: REASON -->` before a block: it is not executed.
"""

import argparse
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "pages"
SECONDS = 900  # limit of a page
NUMBER = re.compile(r"[-+\u2212]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?")
MARK = "<!-- not run: REASON -->"


class PageError(Exception):
    """A block that fails, or that cannot be run."""


@dataclass(frozen=True)
class Block:
    """Code or commands of a page."""

    kind: str  # "python", "console", or "other", which is not run
    line: int  # of its first line of code
    code: str
    reason: str = ""  # why it is not run

    @property
    def runs(self) -> bool:
        """Whether the block is executed."""
        return self.kind != "other" and not self.reason


@dataclass(frozen=True)
class Command:
    """A shell command and the output that the page shows."""

    line: int
    text: str
    expected: str

    @property
    def exit_code(self) -> int:
        """The exit code that the comment of the command states, or 0."""
        stated = re.search(r"#.*\bexit code (\d+)", self.text)
        return int(stated[1]) if stated else 0

    @property
    def words(self) -> list[str]:
        """The words of the command, without its comment."""
        return shlex.split(self.text.replace("\\\n", " "), comments=True)


def parse(text: str) -> list[Block]:
    """Return the blocks of a page, in order.

    Raises:
        PageError: If a mark has no reason or no block, or a block does not end.
    """
    lines = text.splitlines()
    blocks: list[Block] = []
    reason, marked = "", 0  # of a mark that waits for its block
    i = 0
    while i < len(lines):
        line, start = lines[i], i
        if mark := re.match(r"\s*<!--\s*not run:?(.*?)(-->|$)", line):
            reason, marked = mark[1].strip(), i + 1
            if not reason or not mark[2]:
                raise PageError(f"line {i + 1}: a mark is one line with a reason: {MARK}")
        elif re.match(r"<!--\s*run\s*$", line):
            i = end_of(lines, i, r"\s*-->\s*$")
            blocks.append(Block("python", start + 2, "\n".join(lines[start + 1 : i])))
        elif fence := re.match(r"\s*(?:[-*] +)?(```+|~~~+)\s*(\w*)", line):
            i = end_of(lines, i, rf"\s*{fence[1]}\s*$")
            kind = fence[2] if fence[2] in ("python", "console") else "other"
            code = textwrap.dedent("\n".join(lines[start + 1 : i]))
            blocks.append(Block(kind, start + 2, code, reason))
            reason, marked = "", 0
        elif re.match(r" {4,}\$ ", line):
            while i + 1 < len(lines) and re.match(r" {4}|\s*$", lines[i + 1]):
                i += 1
            blocks.append(
                Block("console", start + 1, textwrap.dedent("\n".join(lines[start : i + 1])).rstrip(), reason)
            )
            reason, marked = "", 0
        elif marked and line.startswith("    "):  # an indented block without commands
            reason, marked = "", 0
        elif marked and line.strip():
            raise PageError(f"line {marked}: no block follows the mark `not run: {reason}`")
        i += 1
    return blocks


def end_of(lines: list[str], start: int, pattern: str) -> int:
    """Return the index of the line that ends the block or comment of line `start`."""
    for i in range(start + 1, len(lines)):
        if re.match(pattern, lines[i]):
            return i
    raise PageError(f"line {start + 1}: `{lines[start].strip()}` does not end")


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a block, with the lines of output that follow each of them."""
    lines = block.code.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("$ ")]
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        end = start + 1
        while lines[end - 1].endswith("\\") and end < stop:
            end += 1
        text = "\n".join(lines[start:end]).removeprefix("$ ")
        yield Command(block.line + start, text, "\n".join(lines[end:stop]))


def visible(text: str) -> str:
    """Return a page without set-up and marks, with its indented commands as fenced `console` blocks, for the site."""
    text = re.sub(r"^ *<!--\s*(run\b|not run:).*?-->\n", "", text, flags=re.M | re.S)
    indented = re.compile(r"(?<=\n\n)((?: {4}\$ .*\n)(?:(?: {4}.*|[ \t]*)\n)*(?<=\S\n))")
    return indented.sub(lambda block: f"```console\n{textwrap.dedent(block[1])}```\n", text)


def pattern(expected: str) -> str:
    """Return a regular expression for `masked` output that the page shows as `expected`."""
    return ".*".join(re.escape(masked(part)) for part in expected.split("..."))


def masked(text: str) -> str:
    """Return the text with every number replaced by 0, and without white space and the frames of tables.

    >>> masked("│ ECE [%] │  4.35 │ 1,234 │")
    'ECE[%]00'
    """
    return re.sub(r"[\s\u2500-\u257f]", "", NUMBER.sub("0", text))


def difference(expected: str, *outputs: str) -> str:
    """Return the first expected line that none of the outputs has, or "" if one of them is as expected."""
    outputs = tuple(masked(output) for output in outputs)
    lines = expected.splitlines()
    for k in range(len(lines)):
        if not any(re.search(pattern("\n".join(lines[: k + 1])), output) for output in outputs):
            return lines[k].strip()
    return ""


def run_command(command: Command) -> None:
    """Run a command and compare its exit code and output with the page."""
    program = next((word for word in command.words if not re.match(r"\w+=", word)), "")
    if program == "cd":
        os.chdir(command.words[1])
    elif program == "export":
        os.environ.update(dict(word.split("=", 1) for word in command.words[1:]))
    elif program not in ("dualfocal", "python"):
        raise PageError(f"line {command.line}: {program} is not run: put {MARK} before the block\n$ {command.text}")
    else:
        done = subprocess.run(["bash", "-c", command.text], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        output = done.stdout + done.stderr
        if done.returncode != command.exit_code:
            what = f"exit code {done.returncode}, expected {command.exit_code}"
        elif command.expected.strip() and (
            missing := difference(command.expected, done.stdout, done.stderr, output, done.stderr + done.stdout)
        ):
            what = f"the output differs from the page; expected here: {missing}"
        else:
            return
        raise PageError(f"line {command.line}: {what}\n$ {command.text}\n{output[-6000:]}")


def run_python(block: Block, page: Path, namespace: dict[str, Any]) -> None:
    """Run a block of Python; it must raise the error that it states in a comment `# raises ValueError`."""
    stated = re.search(r"# raises (\w+)$", block.code, re.M)
    try:
        # With empty lines in front, a traceback shows the line of the page.
        exec(compile("\n" * (block.line - 1) + block.code, page, "exec"), namespace)
    except Exception as error:
        if not stated or stated[1] != type(error).__name__:
            raise
    else:
        if stated:
            raise PageError(f"line {block.line}: the block does not raise {stated[1]}")


def run_here(page: Path) -> None:
    """Run all blocks of a page in this process and in the current folder."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")  # as in a notebook: classes can be pickled
    sys.path[0] = ""
    for block in parse(page.read_text(encoding="utf-8")):
        if block.runs and block.kind == "python":
            if name := re.match(r"# (\w+\.py)\n", block.code):
                Path(name[1]).write_text(block.code + "\n", encoding="utf-8")
            run_python(block, page, module.__dict__)
        elif block.runs:
            for command in commands(block):
                run_command(command)


def run_page(page: Path, *, verbose: bool = False) -> str:
    """Run a page in a process and a temporary folder of its own; return "" or why it failed."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "120",  # otherwise rich wraps the cells of tables
        "MPLBACKEND": "Agg",
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "default",
    }
    with tempfile.TemporaryDirectory(prefix=f"{page.stem}-") as folder:
        # A tree of links: what a page writes there does not change the repository.
        shutil.copytree(ROOT / "lab" / "results", Path(folder, "lab", "results"), copy_function=os.symlink)
        try:
            done = subprocess.run(
                [sys.executable, __file__, "--here", page],
                cwd=folder,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=None if verbose else subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            return f"took longer than {SECONDS} s"
        return done.stderr if done.returncode else ""


def key(page: Path) -> str:
    """Return a hash of all that a run of the page depends on: the page, this file, and the package."""
    content = hashlib.sha256(sys.version.encode())
    for file in [page, Path(__file__), *sorted(ROOT.glob("**/src/**/*.py")), *sorted(ROOT.glob("examples/*"))]:
        content.update(file.read_bytes() if file.is_file() else b"")
    return content.hexdigest()


def check(page: Path, *, cached: bool, verbose: bool) -> bool:
    """Run a page, unless it is known to work, and print the result."""
    name = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
    stamp = CACHE / key(page)
    try:
        blocks = parse(page.read_text(encoding="utf-8"))
    except PageError as error:
        print(f"{name}: {error}", flush=True)
        return False
    start = time.monotonic()
    failure = "" if cached and stamp.exists() else run_page(page, verbose=verbose)
    if failure:
        print(f"{name}: {failure.rstrip()}", flush=True)
        return False
    seconds = "cached" if cached and stamp.exists() else f"{time.monotonic() - start:.1f} s"
    counts = sum(block.runs for block in blocks), sum(not block.runs for block in blocks)
    print(f"{name}: {counts[0]} run, {counts[1]} not run, {seconds}", flush=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    stamp.touch()
    return True


def main() -> int:
    """Parse the arguments and run the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE")
    parser.add_argument("--all", action="store_true", help="also pages that ran before and have not changed since")
    parser.add_argument("--verbose", action="store_true", help="show what the Python blocks print")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        try:
            run_here(options.pages[0])
        except PageError as error:
            print(error, file=sys.stderr)
            return 1
        except BaseException as error:
            frames = error.__traceback__
            while frames and frames.tb_frame.f_code.co_filename == __file__:  # the frames of this file say nothing
                frames = frames.tb_next
            traceback.print_exception(error.with_traceback(frames))
            return 1
        return 0
    pages = [page.resolve() for page in options.pages] or [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    results = [check(page, cached=not options.all, verbose=options.verbose) for page in pages]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
