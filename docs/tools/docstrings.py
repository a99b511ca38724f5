"""Docstrings as Markdown, for the API reference: doctests become code blocks, Sphinx roles become links."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(func|class|meth|mod|data|attr|exc|obj):`([^`]+)`")
DOCTEST = re.compile(r"(?:^>>> .*\n?(?:^(?!>>> )\S.*\n?|^(?!>>> )[ ]+\S.*\n?)*)+", re.M)


class Docstrings(griffe.Extension):
    """Change docstrings before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value, obj.path)


def to_markdown(text: str, path: str = "") -> str:
    """Return a docstring as Markdown. `path` is the dotted name of its object.

    >>> to_markdown("See :func:`ece`.", "dualfocal.metrics.evaluate")
    'See <autoref optional identifier="dualfocal.metrics.ece"><code>ece</code></autoref>.'
    """
    text = DOCTEST.sub(lambda block: f"```pycon\n{block[0].rstrip()}\n```\n", text)
    return ROLE.sub(lambda role: link(role[1], role[2], path), text)


def link(kind: str, role: str, path: str) -> str:
    """Return a link to the object that a role names; it is plain code if the reference does not have that object."""
    role = " ".join(role.split())
    named = re.fullmatch(r"(.*) <(.*)>", role)
    text, target = (named[1], named[2]) if named else (role, role)
    if target.startswith("~"):
        text, target = target.rsplit(".", 1)[-1], target[1:]
    if not target.startswith("dualfocal"):  # of the same class, or of the same subpackage
        parts = path.split(".")
        classes = [part for part in parts[2:] if part[:1].isupper()]
        own = classes[-1:] if kind in ("meth", "attr") and not target[:1].isupper() else []
        target = ".".join([*parts[:2], *own, target])
    return f'<autoref optional identifier="{target}"><code>{text}</code></autoref>'
