"""The paper's theory: its functions, numerical checks of its claims, and exact minimisers of the conditional risk."""

from dualfocal_lab.theory.claims import Claim, check_claims, posterior_grid
from dualfocal_lab.theory.curves import GradientRatios, gradient_ratios, gradient_table, h, phi, phi_slope, s, t, u
from dualfocal_lab.theory.minimiser import (
    Minimiser,
    compare_minimisers,
    conditional_risk,
    cross_entropy_minimiser,
    dual_focal_minimiser,
    dual_focal_minimisers,
    focal_minimiser,
    focal_minimisers,
    uniform_threshold,
)
from dualfocal_lab.theory.regions import (
    FIGURE_1,
    Regions,
    dual_entropy_bound,
    entropy_bound,
    phi_inverse,
    phi_peak,
    regions,
)
from dualfocal_lab.theory.stationarity import exact_eta, published_eta

__all__ = [
    "FIGURE_1",
    "Claim",
    "GradientRatios",
    "Minimiser",
    "Regions",
    "check_claims",
    "compare_minimisers",
    "conditional_risk",
    "cross_entropy_minimiser",
    "dual_entropy_bound",
    "dual_focal_minimiser",
    "dual_focal_minimisers",
    "entropy_bound",
    "exact_eta",
    "focal_minimiser",
    "focal_minimisers",
    "gradient_ratios",
    "gradient_table",
    "h",
    "phi",
    "phi_inverse",
    "phi_peak",
    "phi_slope",
    "posterior_grid",
    "published_eta",
    "regions",
    "s",
    "t",
    "u",
    "uniform_threshold",
]
