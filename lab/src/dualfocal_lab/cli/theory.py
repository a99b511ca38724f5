"""`dualfocal paper theory`: the paper's functions, a check of its claims, and the exact minimiser."""

from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from dualfocal.cli.commands import AsJson, check_plot, comma_separated, consoles, print_json, say, show
from dualfocal.tables import Table
from dualfocal_lab.cli._common import FIGURE_1

if TYPE_CHECKING:
    from dualfocal_lab.theory import Claim, Minimiser, Regions

WIDTH = 100
MAX_GAMMA = 20
MAX_CLASSES = 5  # of --eta: all their orders are tried
STYLES = {"holds": "green", "fails": "bold red", "empty": "yellow"}


def theory(
    gamma: Annotated[float, typer.Option(metavar="X", help="Gamma of the loss: above 0, at most 20.")] = FIGURE_1[0],
    c: Annotated[
        float, typer.Option("--c", metavar="C", help="q_j, the probability below the largest: at least 0, below 1.")
    ] = FIGURE_1[1],
    eta: Annotated[
        str | None,
        typer.Option(
            metavar=".5,.3,.2",
            help="True class probabilities, 2 to 5 classes, for which to compute the prediction with the lowest risk.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", callback=check_plot, help="Draw the paper's Figure 1 for gamma and C: .png, .pdf or .svg."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the theoretical claims of the paper numerically.

    Prints the points of Figure 1 and the factors on the gradient, then checks Lemma 1, Theorem 1 and their
    consequences on a grid. With `--eta`, computes the exact minimiser of the conditional risk for this posterior and
    compares it with those of cross-entropy and focal loss. `docs/theory.md` explains the results.

        dualfocal paper theory

        dualfocal paper theory --gamma 2 --eta .5,.3,.2

        dualfocal paper theory --gamma 5 --c 0.1 --plot figure1.png
    """
    from dualfocal_lab.theory import check_claims, compare_minimisers, gradient_table, regions

    out, err = consoles(as_json)
    if gamma > MAX_GAMMA:  # before its powers overflow
        raise ValueError(f"gamma must be finite and between 0 and {MAX_GAMMA}, got {gamma!r}")
    posterior = comma_separated("--eta", eta, float)
    if len(posterior) > MAX_CLASSES:
        raise ValueError(f"--eta must have at most {MAX_CLASSES} classes, got {len(posterior)}")
    points = regions(gamma, c)
    gradients = gradient_table(gamma, c)
    minimisers = {} if eta is None else compare_minimisers(posterior, gamma)
    claims = check_claims(gamma)
    if as_json:
        print_json(
            {
                "schema": 1,
                "regions": points.to_dict(),
                "gradient_ratios": gradients,
                "claims": [asdict(claim) for claim in claims],
                "minimisers": [{"name": name, **minimiser.to_dict()} for name, minimiser in minimisers.items()],
            }
        )
    _print_regions(out, points)
    if gradients:
        show(out, _gradients(gamma, c, gradients))
    _print_claims(out, gamma, claims)
    if minimisers:
        _print_minimisers(out, minimisers)
    if plot is not None:
        from dualfocal.plots import save
        from dualfocal_lab.plots.theory import phi_figure

        save(phi_figure(gamma, c), plot, dpi=150)
        say(err, f"Figure 1: {plot}")


def _print_regions(out: Console, points: "Regions") -> None:
    from dualfocal_lab.theory import phi

    gamma, c, low, high = points.gamma, points.c, *points.possible
    numbers_of_each = {
        "phi(0)": (1.0, (1 + c) ** gamma),
        "phi(1)": (0.0, c**gamma),
        "v^m, where phi is largest": (points.focal_v_m, points.v_m),
        "phi(v^m)": (float(phi(points.focal_v_m, gamma)), float(phi(points.v_m, gamma, c))),
        "v', where phi = phi(0)": (points.focal_v_prime, points.v_prime),
        "v^uc, where phi = 1": (points.focal_v_prime, points.v_uc),
    }
    rows = [
        *([name, f"{focal:.4f}", f"{dual:.4f}"] for name, (focal, dual) in numbers_of_each.items()),
        ["claimed over-confident: q_m in", f"(0, {points.focal_v_m:.4f}]", f"(0, {points.v_m:.4f}]"],
        ["claimed under-confident: q_m in", f"[{points.focal_v_prime:.4f}, 1)", f"[{points.v_uc:.4f}, 1)"],
        ["claimed reduction, v^uc - v'", "", f"{points.reduction:.4f}"],
        ["v^uc less focal loss's v'", "", f"{points.reduction_from_focal:.4f}"],
    ]
    show(out, Table(["", "focal", "dual focal"], rows, f"Lemma 1 and Figure 1, gamma = {gamma:g}, C = q_j = {c:g}"))
    where = f"q_m lies in ({low:.4g}, {high:.4g}]" if low < high else "there is no such q_m"
    say(out, f"Because q_m is above C and at most 1 - C, {where}.", style="dim")


def _gradients(gamma: float, c: float, gradients: list[dict[str, float | None]]) -> Table:
    rows = [
        [f"{row['p_k']:.1f}", *("-" if value is None else f"{value:.3f}" for value in list(row.values())[1:])]
        for row in gradients
    ]
    title = f"gradient by a logit over cross-entropy's (function g), gamma = {gamma:g}, p_j = {c:g}"
    return Table(["p_k", "focal: all logits", "dual focal: target's", "its rival's", "others'"], rows, title)


def _print_claims(out: Console, gamma: float, claims: "list[Claim]") -> None:
    out.print(Text(f"claims and findings for gamma = {gamma:g}", style="italic"))
    width = min(WIDTH, out.width)
    for claim in claims:
        says = fill(f"{claim.verdict:7}{claim.where}: {claim.says}", width, subsequent_indent=" " * 7)
        finding = fill(claim.finding, width, initial_indent=" " * 9, subsequent_indent=" " * 9)
        verdict = (says[:7], STYLES[claim.verdict])
        out.print(Text.assemble(verdict, says[7:], "\n", (finding, "dim")), soft_wrap=True, highlight=False)
    out.print("empty: the grid has no case that the claim is about. A grid cannot prove a claim.", style="dim")


def _print_minimisers(out: Console, minimisers: "dict[str, Minimiser]") -> None:
    rows = [
        [
            name.replace("dual focal, ", "  "),  # three classes fit into 80 columns
            " ".join(map(_fraction, minimiser.q)),
            ">".join("=".join(map(str, group)) for group in minimiser.ranking),
            f"{_fraction(max(minimiser.q))} {minimiser.verdict.removesuffix('-confident')}",
            f"{minimiser.risk:.5f}" if minimiser.attained else f"{minimiser.risk:.5f} (limit)",
        ]
        for name, minimiser in minimisers.items()
    ]
    eta = ", ".join(f"{value:g}" for value in minimisers["cross-entropy"].eta)
    show(out, Table(["loss", "q", "order", "max q", "risk"], rows, f"least conditional risk for eta = ({eta})"))
    dual = minimisers["dual focal"]
    pairs = ", ".join(f"class {b} above class {a}" for a, b in dual.inversions)
    text = f"Dual focal loss ranks {pairs}, against the posterior." if pairs else "Dual focal loss keeps the order."
    if not dual.attained:
        text += " Its risk is a limit, as neighbours in the order become equal."
    gap = "" if dual.verdict == "calibrated" else f" by {abs(dual.overconfidence):.2g}"
    say(out, f"{text} It is {dual.verdict}{gap}.", "bold", wrap=True)


def _fraction(value: float) -> str:
    return f"{value:.4f}".removeprefix("0")
