"""The fixtures for the tests of all commands."""

from command_fixtures import _folder, files, record, refused, run

__all__ = ["_folder", "files", "record", "refused", "run"]
