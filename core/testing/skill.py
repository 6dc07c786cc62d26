"""Conformance of skills."""

from __future__ import annotations

from ggfw.chat.skill_files import MAX_BYTES, MAX_DESCRIPTION
from ggfw.chat.tools import Tools
from ggfw.descriptors import Skill, resolve
from ggfw.testing.checks import Checks, NotApplicable

__all__ = ["SkillChecks"]


class SkillChecks(Checks[Skill]):
    """See the methods."""

    kind = Skill
    rules = ("descriptor", "description", "load", "body", "tools")

    def description(self) -> None:
        """The description is one line of at most 1024 characters: the model sees it in every conversation."""
        text = self.item.description
        assert text.strip() == text and "\n" not in text, (
            "the description is not one line without space around it"
        )
        assert len(text) <= MAX_DESCRIPTION, (
            f"the description has {len(text)} characters, at most {MAX_DESCRIPTION}"
        )

    def load(self) -> None:
        """``load`` gives text, and the same again."""
        make = resolve(self.item.load)
        self._body = make()
        assert isinstance(self._body, str), f"load gives {type(self._body).__name__}, expected text"
        assert make() == self._body, "load gives another text the second time"

    def body(self) -> None:
        """The body says something, and is no larger than a skill file may be."""
        assert self._body.strip(), "the body is empty"
        size = len(self._body.encode())
        assert size <= MAX_BYTES, f"the body has {size} bytes, at most {MAX_BYTES} are read"
        assert not self._body.lstrip().startswith("---\n"), "the body begins with front matter; leave it out"

    def tools(self) -> None:
        """The tools are function definitions with names of their own."""
        if not self.item.tools:
            raise NotApplicable("it brings no tools")
        Tools.of(list(self.item.tools))
