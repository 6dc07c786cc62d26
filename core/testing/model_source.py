"""Conformance of model sources: what they give, and that nothing lands outside their folder."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ggfw.descriptors import ModelSource, resolve
from ggfw.errors import GgfwError
from ggfw.model_source import PARTIAL
from ggfw.testing.checks import Checks, NotApplicable

__all__ = ["ModelSourceChecks"]

#: References that no source may follow.
HOSTILE = ("", "../../../etc/passwd", "..", "\0", "a/../../../b.gguf", "%2e%2e/%2e%2e/x", " ", "//", "\n")


class ModelSourceChecks(Checks[ModelSource]):
    """See the methods."""

    kind = ModelSource
    rules = ("descriptor", "load", "refuses", "resolves", "again", "progress")

    def load(self) -> None:
        """``load`` gives a class that is made with a folder and has ``resolve``; making one writes nothing."""
        self._cls = resolve(self.item.load)
        with tempfile.TemporaryDirectory() as folder:
            source = self._cls(Path(folder))
            assert callable(getattr(source, "resolve", None)), f"{self._cls!r} has no resolve"
            assert not any(Path(folder).iterdir()), "making a source writes into its folder"

    def refuses(self) -> None:
        """References that are empty, malformed or lead out of the folder are an error of ggfw's, and write nothing.

        A source that is not remote may give what is there already: the paths are the user's own.
        """
        for rest in HOSTILE:
            with tempfile.TemporaryDirectory() as outer:
                folder = Path(outer) / "one" / "two" / "models"
                folder.mkdir(parents=True)
                try:
                    given = self._cls(folder).resolve(rest)
                except GgfwError:
                    pass
                else:
                    there = not self.item.remote and given and all(Path(path).is_file() for path in given)
                    assert there, f"{self.item.name}:{rest!r} is followed, to {given!r}"
                stray = [p for p in Path(outer).rglob("*") if p.is_file() and not p.is_relative_to(folder)]
                assert not stray, f"{self.item.name}:{rest!r} leaves {stray[0].name!r} outside the folder"

    def resolves(self) -> None:
        """The sample reference becomes files that exist, are finished, and stand in the folder if they were fetched."""
        for found, folder in self._resolve():
            assert isinstance(found, list) and found and all(isinstance(p, Path) for p in found), (
                f"resolve gives {found!r}, expected a list of paths"
            )
            for path in found:
                assert path.is_file(), f"there is no file {path.name!r}"
                inside = path.resolve().is_relative_to(folder.resolve())
                assert inside or not self.item.remote, f"{path} is not in the source's folder"
                assert PARTIAL not in path.parts, f"{path.name!r} is still in the folder for unfinished files"
            left = [p.name for p in folder.rglob("*") if p.is_file() and PARTIAL in p.parts]
            assert not left, f"{left[0]!r} is left in the folder for unfinished files"

    def again(self) -> None:
        """A second ``resolve`` gives the same files."""
        for found, folder in self._resolve():
            first = [(path.name, path.read_bytes()) for path in found]
            again = self._cls(folder).resolve(self._reference)
            assert [(path.name, path.read_bytes()) for path in again] == first, (
                "the second time gives other files"
            )

    def progress(self) -> None:
        """Progress is told as (text, bytes so far, bytes in all or None), and never runs past the end."""
        told: list[tuple[Any, ...]] = []
        for _ in self._resolve(lambda *what: told.append(what)):
            pass
        for what in told:
            assert len(what) == 3, f"progress was called with {what!r}"
            text, done, total = what
            good = isinstance(text, str) and isinstance(done, int) and (total is None or 0 <= done <= total)
            assert good, f"progress was told {what!r}"

    def _resolve(self, progress: Any = None) -> Any:
        """The files of the sample, and the folder they were fetched into; one round of a loop, which cleans up."""
        if self.item.sample is None:
            raise NotApplicable("there is no sample to fetch")
        with self.sample() as reference, tempfile.TemporaryDirectory() as folder:
            scheme, _, self._reference = reference.partition(":")
            assert scheme == self.item.name, f"the sample {reference!r} is not of the scheme {self.item.name}"
            yield self._cls(Path(folder)).resolve(self._reference, progress), Path(folder)
