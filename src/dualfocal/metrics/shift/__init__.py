"""Evaluation of a model on shifted data."""
