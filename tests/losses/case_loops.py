"""Loops over cheap cases inside one test."""

import functools
import inspect
from collections.abc import Callable, Iterable
from itertools import product

import pytest
import torch


def for_each(**cases: Iterable[object]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for all combinations of these values: one collected test, where ``parametrize`` makes many.

    Every combination starts from the same random seed and with a ``monkeypatch`` of its own, and a failure names its
    combination.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        patches = "monkeypatch" in signature.parameters

        @functools.wraps(test)
        def loop(**fixtures: object) -> None:
            for values in product(*cases.values()):
                case = dict(zip(cases, values, strict=True))
                torch.manual_seed(0)
                with pytest.MonkeyPatch.context() as monkeypatch:
                    arguments = {**case, **fixtures, **({"monkeypatch": monkeypatch} if patches else {})}
                    try:
                        test(**arguments)
                    except BaseException as error:
                        error.add_note(f"in the case {case}")
                        raise

        given = [p for name, p in signature.parameters.items() if name not in cases and name != "monkeypatch"]
        loop.__signature__ = signature.replace(parameters=given)
        return loop

    return decorate
