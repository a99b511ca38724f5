"""Predictions that live in other systems. Each module needs the extra of its name, ``pip install "dualfocal[sql]"``."""
