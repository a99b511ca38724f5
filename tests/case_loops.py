"""Loops over cheap cases inside one test."""

import functools
import inspect
from collections.abc import Callable, Iterable
from itertools import product

import pytest
import torch


def for_each(
    names: str = "", rows: Iterable[tuple[object, ...]] = ((),), /, **values: Iterable[object]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for all combinations of rows and values: one collected test, where ``parametrize`` makes many.

    Every combination starts from the same random seed and with a ``monkeypatch`` of its own, and a failure names its
    combination.

    Args:
        names: names of the arguments that a row holds, as in ``"confidence, message"``.
        rows: a table of cases.
        values: values of further arguments.
    """
    columns = [*filter(None, names.replace(",", " ").split()), *values]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        patches = "monkeypatch" in signature.parameters

        @functools.wraps(test)
        def loop(**fixtures: object) -> None:
            for row, *rest in product(rows, *values.values()):
                case = dict(zip(columns, [*row, *rest], strict=True))
                torch.manual_seed(0)
                with pytest.MonkeyPatch.context() as monkeypatch:
                    arguments = {**case, **fixtures, **({"monkeypatch": monkeypatch} if patches else {})}
                    try:
                        test(**arguments)
                    except BaseException as error:
                        error.add_note(f"in the case {case}")
                        raise

        given = [p for name, p in signature.parameters.items() if name not in [*columns, "monkeypatch"]]
        loop.__signature__ = signature.replace(parameters=given)
        return loop

    return decorate
