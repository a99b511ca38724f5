"""Choose gamma on your own data: train with several gammas and seeds, and compare the validation NLL.

    python examples/choose_gamma.py

Your data are an .npz file with the arrays ``x`` and ``y`` (or ``x_train``, ``y_train``, ``x_val``, ...), a folder of
images, or ``module:function``. Here noisy digits of scikit-learn take their place, in ``my_data.npz``. The same on the
command line:

    dualfocal study --gamma 0,1,2,5,10 --dataset my_data.npz --set data.layout=NCHW --set data.val_size=400

Choose by the NLL, not by the ECE: the ECE of a few hundred samples is mostly noise. Choose on the validation split: on
the test split, the chosen gamma would look better than it is. Gammas within one standard error are equally good.
"""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from dualfocal_lab.study import choose_gamma, make_study, run_study, summarize

GAMMAS = (0, 1, 2, 5, 10)  # gamma = 0 is cross-entropy
SEEDS = (0, 1, 2)
SETTINGS = (  # of the training; `dualfocal train digits --show` lists and explains all
    "epochs=60",
    "data.layout=NCHW",
    "data.val_size=400",
    "data.test_size=800",
)


def write_data(path: Path) -> None:
    """Write noisy digits, as images (N, 1, 8, 8), and their labels."""
    pixels, labels = load_digits(return_X_y=True)
    noise = np.random.default_rng(0).normal(scale=0.3, size=pixels.shape)
    np.savez(path, x=(pixels / 16 + noise).reshape(-1, 1, 8, 8), y=labels)


if __name__ == "__main__":  # the trainings run in processes of their own, which import this file again
    with tempfile.TemporaryDirectory() as folder:  # keep yours: finished runs are not trained again
        data, out = Path(folder, "my_data.npz"), Path(folder, "study")
        write_data(data)
        study = make_study(["dual_focal"], dataset=str(data), gammas=GAMMAS, seeds=SEEDS, settings=SETTINGS)
        failed = run_study(study, out)
        choice = choose_gamma(study, out)
        print(f"On the validation split:\n{choice}\n")
        print(f"On the test split:\n{summarize(study, out, failed)}")
