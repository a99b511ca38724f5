"""What does not fit together in the paper and in the public code behind it, what this package does, and how to get
the published behaviour all the same.

Tables are called as :mod:`dualfocal.paper.published` calls them, "table1" to "table13", in the order of the paper;
"before" and "after" are before and after temperature scaling, and calibration errors are in percent. "The authors'
code" is what the paper's authors have published; "the older code" that of Mukhoti et al., which they built on.
"""

from collections.abc import Iterable

from dualfocal._checks import did_you_mean
from dualfocal.paper.errata._erratum import Erratum
from dualfocal.paper.errata.claims import CLAIMS
from dualfocal.paper.errata.code import CODE
from dualfocal.paper.errata.method import METHOD
from dualfocal.paper.errata.tables import TABLES
from dualfocal.paper.errata.theory import THEORY

__all__ = ["ERRATA", "GROUPS", "OUT_OF_SCOPE", "Erratum", "find_errata"]

GROUPS: dict[str, tuple[Erratum, ...]] = {
    "paper: tables": TABLES,
    "paper: theory": THEORY,
    "paper: claims": CLAIMS,
    "code": CODE,
    "method": METHOD,
}
"""By kind."""

ERRATA: tuple[Erratum, ...] = tuple(erratum for group in GROUPS.values() for erratum in group)

OUT_OF_SCOPE: tuple[str, ...] = (
    "AvUC (Krishnan and Tickoo 2020), a loss term",
    "soft calibration objectives (Karandikar et al. 2021), loss terms",
    "meta-calibration (Bohdal et al. 2021), a loss term",
    "mixup (Thulasidasan et al. 2019) and AugMix (Hendrycks et al. 2019), augmentations; the losses here take the "
    "class probabilities that mixup needs",
    "ensembles (Lakshminarayanan et al. 2017, Zhang et al. 2020, Rahaman and Thiery 2021) and BatchEnsemble (Wen et "
    "al. 2020)",
    "margin losses other than focal (hinge, contrastive, triplet, margin ranking)",
)
"""What the paper only cites: it has no number of them, and this package has none of them."""


def find_errata(keys: Iterable[str] = ()) -> dict[str, list[Erratum]]:
    """The errata of these keys, or all of them, by kind; kinds without any are left out.

    >>> [erratum.where for erratum in find_errata(["rbs-root"])["paper: tables"]]
    ['table11, Calibration Assessment with Metrics RBS']

    Raises:
        ValueError: no such key, with the nearest.
    """
    wanted = list(keys)
    known = [erratum.key for erratum in ERRATA]
    for key in wanted:
        if key not in known:
            near = did_you_mean(key, known) or "; `dualfocal paper errata` lists them"
            raise ValueError(f"there is no erratum {key!r}{near}")
    found = {kind: [one for one in group if not wanted or one.key in wanted] for kind, group in GROUPS.items()}
    return {kind: some for kind, some in found.items() if some}
