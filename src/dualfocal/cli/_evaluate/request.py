"""What `dualfocal evaluate` is asked for, and options that do not apply to every kind of input."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dualfocal.calibrators import Calibrator
    from dualfocal.predictions import Reading

DENSE = "it is for folders of dense predictions, such as logits/NAME.npy and masks/NAME.png"
INDEPENDENT_ONLY = {
    "--plot-style corp": "its band is for independent samples of equal weight; draw --plot-style quantile"
}
DENSE_ONLY = {"--boundary": DENSE, "--maps": DENSE}
KINDS = {  # options that each name another kind of input, of which a command takes one
    "--task": "give it in a command of its own",
    "--shifted": "give it in a command of its own",
    "--format": "give it in a command of its own",
    "--sql": "give it in a command of its own",
    **DENSE_ONLY,
}


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of `dualfocal evaluate` that more than one kind of input has.

    Args:
        files: the files that the command was given.
        reading: how to read and score them.
        given: names of the options that were given, such as ``"--group-by"``.
        methods: calibrators to compare, by name.
        folds: number of folds of the cross-validation.
        repeats: number of repetitions of the cross-validation.
        merge: whether the files are parts of one set of predictions.
        inference: whether to compute noise floors, tests and intervals.
        plot: where to draw the figure.
        plot_style: "uniform", "quantile" or "corp"; ``given`` holds it as ``"--plot-style corp"``, too.
        fail_over: limit of the debiased RMS error.
        as_json: whether to print JSON only.
    """

    files: list[str]
    reading: "Reading"
    given: Collection[str]
    methods: "Mapping[str, Calibrator]"
    folds: int
    repeats: int
    merge: bool
    inference: bool
    plot: Path | None
    plot_style: str
    fail_over: float | None
    as_json: bool

    def refuse(self, place: str, remedies: Mapping[str, str]) -> None:
        """Raise a ValueError if an option is given that does not apply to this kind of input.

        Args:
            place: the kind of input, which starts with the option that names it.
            remedies: what to do instead, by the name of the option.
        """
        others = {option: remedy for option, remedy in KINDS.items() if not place.startswith(option)}
        refuse(self.given, place, {**others, **remedies})


def refuse(given: Collection[str], place: str, remedies: Mapping[str, str]) -> None:
    """Raise a ValueError if an option is given that does not apply.

    Args:
        given: names of the options that were given.
        place: what they do not apply to.
        remedies: what to do instead, by the name of the option.
    """
    for option, remedy in remedies.items():
        if option in given:
            raise ValueError(f"{option} does not apply to {place}: {remedy}")


def check_different(files: Sequence[str]) -> None:
    """Raise a ValueError if a file is given twice."""
    for path in files:
        if files.count(path) > 1:
            raise ValueError(f"{path} is given more than once")
