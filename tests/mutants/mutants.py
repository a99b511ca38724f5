"""Hand-written mutants of the package: mistakes that a person could make, each with the tests that must notice it."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")


@dataclass(frozen=True)
class Mutant:
    """One small replacement in one file.

    Attributes:
        name: What is wrong, in plain words.
        file: Path of the file below ``src/dualfocal``.
        old: Text to replace; it must occur exactly once in the file.
        new: Text that makes the mistake.
        tests: Test files, or node ids, that must fail; paths are below ``tests``.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def path(self, source: Path) -> Path:
        """The file in a source folder, which holds the package."""
        return source / "dualfocal" / self.file

    def apply(self, source: Path) -> None:
        """Make the mistake in a copy of the source folder."""
        path = self.path(source)
        text = path.read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: the old text must occur once in {self.file}, it occurs {count} times")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


def load_mutants() -> list[Mutant]:
    """Read the list."""
    content = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return [Mutant(**entry | {"tests": tuple(entry["tests"])}) for entry in content["mutants"]]
