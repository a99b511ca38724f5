"""The page of the errata, from the file that `dualfocal paper errata` prints."""

from dualfocal_lab.paper.errata import GROUPS, OUT_OF_SCOPE


def errata_page() -> str:
    """Inconsistencies of the paper and of its code."""
    parts = [
        "# Errata",
        "Inconsistencies of the paper and its public code, what this package does, and how to get the published "
        "behaviour. `dualfocal paper errata` prints the same.",
    ]
    for kind, group in GROUPS.items():
        parts.append(f"## {kind[0].upper()}{kind[1:]}")
        for erratum in group:
            parts += [f"### {erratum.key}", f"**{erratum.where}.** {erratum.what}", f"*This package:* {erratum.ours}"]
            parts += [f"*As published:* `{erratum.option}`"] if erratum.option else []
    return "\n\n".join([*parts, "## Out of scope", *OUT_OF_SCOPE]) + "\n"
