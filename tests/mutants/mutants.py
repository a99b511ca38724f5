"""Hand-written mutants of the package: mistakes that a person could make, each with the tests that must notice it."""

import ast
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")


@dataclass(frozen=True)
class Mutant:
    """One small replacement in one file.

    Attributes:
        name: What is wrong, in plain words.
        file: Path of the file below ``src`` or ``lab/src``.
        old: Text to replace; it must occur exactly once in the file.
        new: Text that makes the mistake.
        tests: Test files, or node ids, that must fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, source: Path) -> None:
        """Make the mistake in a copy of the source folder, which holds the packages.

        Raises:
            OSError: there is no such file.
            ValueError: the old text does not occur exactly once, or the result is not Python.
        """
        path = source / self.file
        text = path.read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"old occurs {count} times in {self.file}, it must occur once: {self.old!r}")
        mutated = text.replace(self.old, self.new)
        try:
            ast.parse(mutated)
        except SyntaxError as error:
            raise ValueError(f"with new, {self.file} is not Python: {error}") from error
        path.write_text(mutated, encoding="utf-8")


def load_mutants() -> list[Mutant]:
    """Read the list.

    Raises:
        ValueError: two mutants have the same name.
    """
    content = tomllib.loads(LIST.read_text(encoding="utf-8"))
    mutants = [Mutant(**entry | {"tests": tuple(entry["tests"])}) for entry in content["mutants"]]
    if repeated := [name for name, count in Counter(mutant.name for mutant in mutants).items() if count > 1]:
        raise ValueError(f"{LIST.name} has several mutants named {repeated[0]!r}")
    return mutants
