"""The laboratory of dualfocal: data sets, networks, training, studies, and the paper, re-run.

It adds the commands ``train``, ``study``, ``runs``, ``data`` and ``paper`` to ``dualfocal``.
"""

from pathlib import Path

__version__ = "1.0.0"  # the version of dualfocal
__all__ = ["RESULTS", "__version__"]

_installed = Path(__file__).parent / "results"  # in a checkout a link, which an sdist does not have
# Every run that was made, and what the authors have published.
RESULTS = (_installed if _installed.is_dir() else Path(__file__).parents[2] / "results").resolve()
