"""Evaluations of any number of predictions from sums that merge exactly; no sample is kept."""
