"""Evaluation of multi-label predictions."""
