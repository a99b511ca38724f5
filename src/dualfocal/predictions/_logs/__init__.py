"""Logs of multiple-choice questions, as written by evaluation harnesses for language models."""
