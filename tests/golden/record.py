"""Record the numbers that dualfocal gives on small inputs, and tell later which of them have changed.

    python tests/golden/record.py --check                     # compare with the committed baseline, to the bit
    python tests/golden/record.py --check --tolerance 1e-9 1e-12
    python tests/golden/record.py tests/golden/baseline.json.xz --only losses      # record a section again
    python tests/golden/record.py --frozen --check            # inference: within the noise of its simulations

README.md says more.
"""

import os
import sys

# This file imports little: processes that are started from here import it again.
if __name__ == "__main__":
    # Sums depend on the number of threads, tables on the terminal: set before torch and rich are imported.
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MPLBACKEND": "agg", "COLUMNS": "200"}
    os.environ |= {"NO_COLOR": "1", "TERM": "dumb", "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    for variable in ("DUALFOCAL_DATA", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "RANK", "WORLD_SIZE"):
        os.environ.pop(variable, None)
    from program import main

    sys.exit(main())
