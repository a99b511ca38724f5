"""Draw every picture of docs/concepts, from the runs in results/ and from generated, seeded data.

python docs/tools/figures.py                 # all pictures
python docs/tools/figures.py ece-classes     # some of them
"""

import sys
from collections.abc import Callable
from pathlib import Path

import figures_of_errors as errors
import figures_of_ideas as ideas
from matplotlib.figure import Figure

from dualfocal.plots import save

FOLDER = Path(__file__).parents[1] / "concepts"
FIGURES: dict[str, Callable[[], Figure]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        ideas.five_meaning,
        ideas.five_reliability,
        ideas.five_directions,
        ideas.five_noise,
        ideas.five_temperature,
        ideas.why_rival,
        ideas.why_rewarded,
        ideas.why_two_classes,
        ideas.why_cifar10,
        errors.ece_bins,
        errors.ece_noise,
        errors.ece_classes,
        errors.ece_groups,
        errors.ece_maximum,
        errors.temperature_cifar10,
        errors.temperature_samples,
        errors.temperature_shift,
        errors.temperature_classes,
    )
}


def main(names: list[str]) -> None:
    """Draw the pictures of these names, or all."""
    unknown = sorted(set(names) - FIGURES.keys())
    if unknown:
        raise SystemExit(f"no picture {', '.join(unknown)}; there are {', '.join(FIGURES)}")
    for name in names or FIGURES:
        save(FIGURES[name](), FOLDER / f"{name}.png", dpi=160)
        print(f"docs/concepts/{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
