"""Triton kernels for CUDA; nothing here is imported unless it is used, so that triton is needed only there."""
