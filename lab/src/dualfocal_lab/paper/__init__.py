"""Reproduce the paper: Tao, Dong, Xu, "Dual Focal Loss for Calibration", ICML 2023, arXiv:2305.13665."""
