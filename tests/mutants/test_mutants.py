"""The list of mutants fits the files: only ``make mutants`` runs it, and it must not rot until then."""

import ast
from functools import cache
from pathlib import Path

from mutants import ROOT, Mutant, load_mutants

MUTANTS = load_mutants()


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.parse(text_of(path)).body if isinstance(node, ast.FunctionDef)}


def test_mutants_are_many_and_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40


def test_the_old_text_occurs_once_in_its_file() -> None:
    counts = {mutant.name: text_of(mutant.path(ROOT / "src")).count(mutant.old) for mutant in MUTANTS}
    assert {name: count for name, count in counts.items() if count != 1} == {}


def test_a_mutant_is_another_program_that_python_can_read() -> None:
    def differs(mutant: Mutant) -> bool:
        text = text_of(mutant.path(ROOT / "src"))
        mutated, original = ast.parse(text.replace(mutant.old, mutant.new)), ast.parse(text)
        return ast.dump(mutated) != ast.dump(original)

    assert [mutant.name for mutant in MUTANTS if not differs(mutant)] == []


def test_the_tests_of_a_mutant_exist() -> None:
    def exists(test: str) -> bool:
        file, _, name = test.partition("::")
        path = ROOT / "tests" / file
        return path.is_file() and (not name or name in functions_of(path))

    assert [mutant.name for mutant in MUTANTS if not mutant.tests or not all(map(exists, mutant.tests))] == []
