"""Triton kernels for batch normalisation on CUDA, which the networks use; imported only where they run."""
