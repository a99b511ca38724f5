"""The data sets of runs, for images of samples and names of classes: an extra, which never costs a report."""

from dataclasses import replace
from pathlib import Path

import torch

from dualfocal.data import DataNotFoundError, DataSet, load_data
from dualfocal.report.naming import shortened, without_folders
from dualfocal.report.subjects import Reading, Subject

LONGEST_REASON = 200  # characters


class RunData:
    """The data sets of runs, each read once, and only where they lie on disk."""

    def __init__(self, root: Path | None, reading: Reading) -> None:
        self.root = root
        self.reading = reading
        self.read: dict[str, DataSet | str] = {}

    def key(self, subject: Subject) -> str:
        """A number for each data set."""
        return str(list(self.read).index(_key(subject)))

    def named(self, subject: Subject) -> Subject:
        """The subject, with the names of its classes where its file has none but its data are at hand."""
        if subject.data.class_names or subject.run is None:
            return subject
        data, _ = self.samples_of(subject)
        return subject if data is None else replace(subject, known_names=data.class_names)

    def images_of(self, subject: Subject) -> tuple[DataSet | None, str]:
        """The data of a run if they have images of these very samples; otherwise why not, in a line."""
        data, why = self.samples_of(subject)
        if data is not None and (data.inputs.ndim != 4 or data.inputs.shape[1] not in (1, 3)):
            return None, "The samples are no images."
        return data, why

    def samples_of(self, subject: Subject) -> tuple[DataSet | None, str]:
        """The data of a run if they hold these very samples; otherwise why not, in a line."""
        if subject.run is None:
            return None, ""
        key = _key(subject)
        if key not in self.read:
            self.read[key] = self._load(subject)
        data = self.read[key]
        if isinstance(data, str):
            return None, data
        index = data.splits.get(subject.part(self.reading), torch.empty(0, dtype=torch.int64))
        # All labels must agree: an image beside the wrong sample would be worse than none.
        if not torch.equal(data.target[index], subject.data.target.reshape(-1)):
            return None, "No images: the data found here are not those that the run was tested on."
        return data, ""

    def _load(self, subject: Subject) -> DataSet | str:
        assert subject.run is not None
        recipe = subject.run.recipe
        if "newsgroups" in recipe.data:
            return "The samples are texts: there are no images."
        name = shortened(without_folders(recipe.data))
        try:
            return load_data(recipe.data, self.root, **recipe.data_options)
        except DataNotFoundError:
            return f"No images: {name} is not among the data here (see --data-root)."
        except Exception as error:  # files and options of any kind: a reader may raise nearly anything
            reason = shortened(without_folders(" ".join(str(error).split())), LONGEST_REASON)
            return f"No images: {name} could not be read here (see --data-root): {reason or type(error).__name__}"


def _key(subject: Subject) -> str:
    assert subject.run is not None
    recipe = subject.run.recipe
    return f"{recipe.data} {sorted(recipe.data_options.items())}"
