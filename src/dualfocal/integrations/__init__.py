"""Other frameworks and systems. A module needs the extra of its name, such as ``pip install "dualfocal[sql]"``."""
