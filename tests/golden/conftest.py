"""The recorder is a program, not tests: pytest must not import its files."""

collect_ignore_glob = ["*.py"]
