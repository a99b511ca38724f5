"""How results with a table and a verdict are printed, and shown in a notebook."""

import html
from abc import ABC, abstractmethod

from dualfocal.tables import Table


class Printed(ABC):
    """A result with a table and a verdict."""

    @abstractmethod
    def table(self) -> Table:
        """Return a table of the result."""

    @abstractmethod
    def verdict(self) -> str:
        """Say in words what the result means."""

    def _tables(self) -> list[Table]:
        return [self.table()]

    def _verdicts(self) -> list[str]:
        """Return the verdict; empty if there is none without inference."""
        return [self.verdict()]

    def __str__(self) -> str:
        tables = [line for table in self._tables() for line in (table.title, table.text())]
        return "\n".join(tables + self._verdicts())

    def _repr_html_(self) -> str:
        verdicts = [f"<p><b>{html.escape(verdict)}</b></p>" for verdict in self._verdicts()]
        return "".join([table.html() for table in self._tables()] + verdicts)
