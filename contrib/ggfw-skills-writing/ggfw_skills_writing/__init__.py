"""Skills as Markdown files of this package; nothing is read before a model asks for it."""

from functools import partial
from pathlib import Path

from ggfw.descriptors import Skill
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

#: Name, which is that of the file too -> what the model is told about it.
SKILLS = {
    "edit-prose": "Edit a text for clarity and brevity without changing what it says or how its author sounds.",
    "commit-message": "Write the message of a commit from a diff or a description of a change.",
    "explain-error": "Explain an error message or stack trace and find out what to do about it.",
}


def body(name: str) -> str:
    """The instructions of a skill."""
    return Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8")


@hookimpl
def ggfw_register_skills():
    return [Skill(name=name, description=text, load=partial(body, name)) for name, text in SKILLS.items()]
