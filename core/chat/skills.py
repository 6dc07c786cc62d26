"""Skills: instructions that a model loads on demand, by calling ``load_skill``.

The names and descriptions stand in the description of that tool; a body goes into the conversation only when the model
asks for it. See :mod:`ggfw.chat.rounds` for how the calls are answered.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from ggfw.chat.skill_files import MAX_DESCRIPTION, read_folder
from ggfw.descriptors import Skill, resolve
from ggfw.errors import InvalidRequest, brief, said

#: Name of the tool.
LOAD_SKILL = "load_skill"


class Skills(Mapping[str, Skill]):
    """Some skills, by name.

    Args:
        skills: of several with one name the first counts, the others become warnings.
        warnings: about what could not be loaded.
    """

    def __init__(self, skills: Iterable[Skill] = (), warnings: Iterable[str] = ()) -> None:
        self._skills: dict[str, Skill] = {}
        #: One sentence for each file that is no skill, and for each skill whose name is taken.
        self.warnings: list[str] = list(warnings)
        for skill in skills:
            if skill.name in self._skills:
                self.warnings.append(
                    f"there are two skills of the name {skill.name!r}; the first one is used"
                )
            else:
                self._skills[skill.name] = skill

    def __getitem__(self, name: str) -> Skill:
        return self._skills[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._skills)

    def __len__(self) -> int:
        return len(self._skills)

    def __repr__(self) -> str:
        return f"<Skills {', '.join(self) or 'none'}>"

    @classmethod
    def of(cls, value: Any) -> Skills:
        """Skills as requests give them: None, :class:`Skills`, a folder, or a list of folders and descriptors.

        Raises:
            InvalidRequest: a folder that cannot be read, or something else.
        """
        if value is None or value is False:
            return cls()
        if isinstance(value, Skills):
            return value
        if isinstance(value, str | os.PathLike):
            return load_skills(value, plugins=False)
        items = None
        if isinstance(value, Iterable) and not isinstance(value, bytes | Mapping):
            with suppress(TypeError):  # an array without axes says of itself that it can be iterated
                items = list(value)
        if items is not None:
            skills: list[Skill] = []
            warnings: list[str] = []
            for item in items:
                if isinstance(item, Skill):
                    skills.append(item)
                else:
                    inner = cls.of(item)
                    skills += inner.values()
                    warnings += inner.warnings
            return cls(skills, warnings)
        raise InvalidRequest(f"skills must be a folder or a list, not {brief(value)}", "skills")

    def tool(self) -> dict[str, Any]:
        """The definition of ``load_skill``, in OpenAI's form."""
        lines = "\n".join(f"- {s.name}: {s.description[:MAX_DESCRIPTION]}" for s in self.values())
        return {
            "type": "function",
            "function": {
                "name": LOAD_SKILL,
                "description": "Load the instructions of a skill. Call this before you answer whenever the request is "
                f"what one of these skills is for, then follow its instructions.\n{lines}",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "description": "Name of the skill.", "enum": list(self)}
                    },
                    "required": ["name"],
                    "additionalProperties": False,
                },
            },
        }

    def answer(self, arguments: str) -> tuple[str, Skill | None]:
        """What the tool answers to a call, and the skill it loaded; a mistake is told to the model.

        Args:
            arguments: JSON text, as the model wrote it.
        """
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            return f"Error: the arguments are not valid JSON ({error})", None
        name = given.get("name") if isinstance(given, dict) else None
        if not isinstance(name, str):
            return f'Error: the arguments must be {{"name": …}} with one of: {", ".join(self)}', None
        skill = self.get(name)
        if skill is None:
            return f"Error: there is no skill {name!r}; the skills are: {', '.join(self)}", None
        try:
            body = resolve(skill.load)()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            why = said(error) or type(error).__name__
            return f"Error: the skill {name!r} could not be loaded: {why}", None
        if not isinstance(body, str):
            return f"Error: the skill {name!r} could not be loaded: its text is {brief(body)}", None
        return body, skill


def load_skills(*folders: str | os.PathLike[str], plugins: bool = True) -> Skills:
    """Read skills.

    Args:
        folders: each holds ``NAME/SKILL.md`` and ``NAME.md`` files; earlier ones win where names are the same.
        plugins: whether skills of installed plugins come along, behind those of the folders.

    Returns:
        The skills; ``warnings`` names every file that is none and says why.

    Raises:
        InvalidRequest: a folder that cannot be read.
    """
    skills: list[Skill] = []
    warnings: list[str] = []
    for folder in folders:
        found, wrong = read_folder(folder)  # type: ignore[arg-type]
        skills += found
        warnings += wrong
    if plugins:
        from ggfw.registry import default_registry

        skills += default_registry().skills.values()
    return Skills(skills, warnings)
