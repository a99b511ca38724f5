"""Run the tests on each mutant of the package.

The exit code is 1 if a mutant survives, or does not apply any more because its file has changed.

    python tests/mutants/run.py --baseline     # the listed tests pass without a mutant
    python tests/mutants/run.py                # all mutants
    python tests/mutants/run.py losses/ Holm   # the mutants with one of these texts in their name or file

Each mutant is made in a copy of the sources in a temporary folder; nothing is written into the repository.
"""

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.dont_write_bytecode = True  # before the import below: nothing is written into the repository

from mutants import ROOT, Mutant, load_mutants  # noqa: E402

TIMEOUT = 300  # seconds for the tests of one mutant
PLUGINS = ("-p", "no:xdist", "-p", "no:cacheprovider", "-p", "imported_source")
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", *PLUGINS)
PASSED, FAILED = 0, 1  # exit codes of pytest; any other one means that the tests did not run


@dataclass(frozen=True)
class Outcome:
    """What the tests said."""

    state: str  # "passed", "failed", "timed out", "did not run" or "does not apply"
    detail: str  # the first test that failed, or why the tests did not run
    seconds: float


async def run_tests(tests: Sequence[str], mutant: Mutant | None = None) -> Outcome:
    """Run tests on a copy of the package, with a mutant or without."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        source = Path(folder, "src")
        for sources in (ROOT / "src", ROOT / "lab" / "src"):
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "results")
            shutil.copytree(sources, source, ignore=ignored, dirs_exist_ok=True)
        (source / "dualfocal_lab" / "results").symlink_to(ROOT / "lab" / "results")
        try:
            if mutant is not None:
                mutant.apply(source)
        except (OSError, ValueError) as error:
            return Outcome("does not apply", str(error), 0.0)
        code, output = await _pytest(tests, source, Path(folder))
    seconds = time.monotonic() - start
    if code is None:
        return Outcome("timed out", f"timeout of {TIMEOUT} s", seconds)
    if code == PASSED:
        return Outcome("passed", "", seconds)
    if code == FAILED:
        return Outcome("failed", _first_failure(output), seconds)
    return Outcome("did not run", f"exit code {code}: {output.strip()[-300:]}", seconds)


async def _pytest(tests: Sequence[str], source: Path, folder: Path) -> tuple[int | None, str]:
    """Exit code, None after a timeout, and output. Temporary files of the tests go into the folder."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(source), str(Path(__file__).parent)]),
        "DUALFOCAL_SOURCE": str(source),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
        "TMPDIR": str(folder),
    }
    log = folder / "output.txt"
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *PYTEST, *tests, cwd=ROOT, env=environment, stdout=file, stderr=file, process_group=0
        )
        try:
            async with asyncio.timeout(TIMEOUT):
                await process.wait()
        except TimeoutError:
            return None, ""
        finally:
            if process.returncode is None:  # a timeout, or Ctrl-C: end the tests and the processes that they started
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
    return process.returncode, log.read_text(encoding="utf-8", errors="replace")


def _first_failure(output: str) -> str:
    """The first test in pytest's summary."""
    for line in output.splitlines():
        kind, _, rest = line.partition(" ")
        if kind in ("FAILED", "ERROR"):
            return rest.partition(" - ")[0]
    return "(no summary)"


def select(mutants: list[Mutant], texts: Sequence[str]) -> list[Mutant]:
    """The mutants with one of the texts in their name or file; all of them without texts."""

    def matches(mutant: Mutant, text: str) -> bool:
        return text in mutant.name or text in mutant.file

    for text in texts:
        if not any(matches(mutant, text) for mutant in mutants):
            raise SystemExit(f"no mutant has {text!r} in its name or file: see --list")
    return [mutant for mutant in mutants if not texts or any(matches(mutant, text) for text in texts)]


Work = dict[str, tuple[Sequence[str], Mutant | None]]  # name -> tests and mutant
Verdict = Callable[[Outcome], tuple[bool, str]]


async def check_all(work: Work, jobs: int, verdict: Verdict, wanted: str) -> bool:
    """Run the tests of each entry, print a line for each, and return whether all verdicts are good."""
    width = max(map(len, work))
    slots = asyncio.Semaphore(jobs)
    bad: list[str] = []

    async def check(name: str, tests: Sequence[str], mutant: Mutant | None) -> None:
        async with slots:
            outcome = await run_tests(tests, mutant)
        is_good, text = verdict(outcome)
        line = f"{name:{width}}  {outcome.seconds:7.1f}  {text}"
        if not is_good:
            bad.append(line)
        print(line, flush=True)

    start = time.monotonic()
    print(f"{'':{width}}  seconds")
    async with asyncio.TaskGroup() as tasks:
        for name, (tests, mutant) in work.items():
            tasks.create_task(check(name, tests, mutant))
    print(f"{len(work) - len(bad)} of {len(work)} {wanted}, in {time.monotonic() - start:.0f} s", *bad, sep="\n")
    return not bad


def killed(outcome: Outcome) -> tuple[bool, str]:
    """Whether the tests noticed a mutant, and which one did."""
    if outcome.state in ("failed", "timed out"):
        return True, f"killed by {outcome.detail}"
    return False, "SURVIVED" if outcome.state == "passed" else f"{outcome.state.upper()}: {outcome.detail}"


def passed(outcome: Outcome) -> tuple[bool, str]:
    """Whether tests pass without a mutant."""
    is_good = outcome.state == "passed"
    return is_good, "passed" if is_good else f"{outcome.state.upper()}: {outcome.detail}"


def main() -> int:
    """Parse the command line, and return the exit code."""
    parser = argparse.ArgumentParser(description="Check that the tests notice each mistake of mutants.toml.")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="part of the name or file of a mutant (none: all)")
    parser.add_argument("--jobs", type=int, default=2, help="number of mutants that run at once (default: 2)")
    parser.add_argument("--list", action="store_true", help="list the mutants and run nothing")
    parser.add_argument("--baseline", action="store_true", help="run the listed tests without a mutant, nothing else")
    arguments = parser.parse_args()
    mutants = select(load_mutants(), arguments.texts)
    if arguments.list:
        print("\n".join(f"{mutant.file}: {mutant.name}" for mutant in mutants))
        return 0
    if arguments.baseline:
        tests = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
        work: Work = {test: ([test], None) for test in tests}
        return not asyncio.run(check_all(work, arguments.jobs, passed, "passed without a mutant"))
    work = {mutant.name: (mutant.tests, mutant) for mutant in mutants}
    return not asyncio.run(check_all(work, arguments.jobs, killed, "mutants killed"))


if __name__ == "__main__":
    sys.exit(main())
