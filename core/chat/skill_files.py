"""Skill files: ``NAME/SKILL.md`` or ``NAME.md``, with front matter that says what the skill is for.

The front matter is read leniently, because people write it by hand and a strict reader of YAML stumbles over a colon in
a sentence: ``key: value`` lines, values in quotes, folded (``>``) and literal (``|``) blocks, and lines that go on with
an indent. Every file is either a skill or a warning that names it.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from contextlib import suppress
from pathlib import Path

from ggfw import arguments
from ggfw.descriptors import Skill
from ggfw.errors import InvalidRequest

#: Bytes of one skill file.
MAX_BYTES = 1 << 18
#: Skill files of one folder.
MAX_FILES = 1000
#: Characters of a name and of a description, which every prompt repeats.
MAX_NAME, MAX_DESCRIPTION = 64, 1024

_KEY = re.compile(r"([A-Za-z_][\w-]*)[ \t]*:(?:[ \t]+(.*)|$)")
_BLOCK = re.compile(r"([>|])[-+0-9]*(?:[ \t]+#.*)?")


class Unusable(Exception):
    """Why a file is no skill, as half a sentence."""


def read_folder(folder: str | Path) -> tuple[list[Skill], list[str]]:
    """The skills of a folder, sorted by name, and a warning for each file that is none.

    Args:
        folder: holds ``NAME/SKILL.md`` and ``NAME.md``; or is itself the folder of one skill.

    Raises:
        InvalidRequest: it is no folder, cannot be listed, or has more than MAX_FILES skill files.
    """
    root = arguments.path("skills", folder)
    with suppress(RuntimeError):  # no such user: then it is no folder either
        root = root.expanduser()
    if not root.is_dir():
        raise InvalidRequest(f"{folder} is no folder; a folder of skills was expected", "skills")
    warnings: list[str] = []
    try:
        files, deeper = _skill_files(root, warnings), _too_deep(root)
    except OSError as error:
        raise InvalidRequest(f"the folder {folder} cannot be listed: {error.strerror}", "skills") from None
    if len(files) > MAX_FILES:
        raise InvalidRequest(f"{folder} has {len(files)} skill files; at most {MAX_FILES} are read", "skills")
    skills: dict[str, Skill] = {}
    warnings += [
        f"{_shown(path)} is not read: skills lie in the folder itself or one folder deep; give "
        f"{_shown(path.parent.parent)} as a folder"
        for path in deeper
    ]
    for path in files:
        try:
            skill = read_file(path, root)
            if skill.name in skills:
                raise Unusable(f"another file has the name {skill.name!r} already")
        except Unusable as why:
            warnings.append(f"{_shown(path)} is not a skill: {why}")
        else:
            skills[skill.name] = skill
    return sorted(skills.values(), key=lambda skill: skill.name), warnings


def _shown(path: Path) -> str:
    """A path on one line and without codes for terminals, whatever stands in it."""
    return str(path) if str(path).isprintable() else ascii(str(path))


def _entries(folder: Path) -> list[Path]:
    """What stands in a folder; nothing where it may not be listed."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _too_deep(root: Path) -> list[Path]:
    """Files that look like skills and lie a folder deeper than skills are looked for. At most MAX_FILES."""
    found: list[Path] = []
    for entry in sorted(root.iterdir()):
        if entry.name.startswith(".") or not entry.is_dir() or entry.is_symlink():
            continue
        for inner in _entries(entry):
            if inner.name.startswith(".") or not inner.is_dir() or inner.is_symlink():
                continue
            for folder, folders, files in os.walk(inner):
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                found += (Path(folder, name) for name in sorted(files) if name.lower() == "skill.md")
                if len(found) >= MAX_FILES:
                    return found[:MAX_FILES]
    return found


def _skill_files(root: Path, warnings: list[str]) -> list[Path]:
    found: list[Path] = []
    for entry in sorted(root.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            try:
                found += (inner for inner in sorted(entry.iterdir()) if inner.name.lower() == "skill.md")
            except OSError as error:
                warnings.append(f"{_shown(entry)} cannot be listed: {error.strerror}")
        elif entry.suffix.lower() == ".md":
            found.append(entry)
    return found


def read_file(path: Path, root: Path) -> Skill:
    """The skill in a file.

    Raises:
        Unusable: it lies outside ``root`` (a link), is too large or unreadable, or has no usable front matter.
    """
    if not path.resolve().is_relative_to(root.resolve()):
        raise Unusable("it is a link that leads out of the folder")
    try:
        if not path.is_file():
            raise Unusable("it is no regular file")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Unusable(f"it cannot be read ({error.strerror})") from None
    if len(raw) > MAX_BYTES:
        raise Unusable(f"it has more than {MAX_BYTES} bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unusable(f"it is not UTF-8 (byte {error.start})") from None
    alone = path.stem if path.stem.lower() != "skill" else path.resolve().parent.name
    return parse(text, alone)


def parse(text: str, default_name: str) -> Skill:
    """The skill in the text of a file.

    Args:
        text: line ends may be of any system.
        default_name: for front matter without ``name``.

    Raises:
        Unusable: no front matter, no end of it, no description, an unusable name, or no instructions.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not lines or lines[0].rstrip() != "---":
        raise Unusable("it has no description; front matter between two lines of --- must hold one")
    end = next((n for n, line in enumerate(lines) if n and line.rstrip() in ("---", "...")), None)
    if end is None:
        raise Unusable("its front matter, begun in line 1, has no closing ---")
    values = front_matter(lines[1:end])
    name = values.get("name", "") or default_name
    if len(name) > MAX_NAME or not name.isprintable():
        raise Unusable(f"its name is not printable text of at most {MAX_NAME} characters")
    description = " ".join(values.get("description", "").split())
    if not description:
        raise Unusable(f"it has no description (lines 1 to {end + 1})")
    body = "\n".join(lines[end + 1 :]).strip()
    if not body:
        raise Unusable(f"it has no instructions behind line {end + 1}")
    word = _word(name) or _word(default_name)
    if not word:
        raise Unusable(f"its name {name!r} has no letter or digit")
    return Skill(name=word, description=description[:MAX_DESCRIPTION], load=lambda: body)


def _word(name: str) -> str:
    """A name of the form that skills have: letters of all scripts stay, white space and the like become hyphens.

    Composed (NFC), so that two spellings of a name are one. Empty where nothing is left.
    """
    composed = unicodedata.normalize("NFC", name)
    # A mark belongs to the letter in front of it, in many scripts; ``\w`` leaves it out.
    kept = (c if c in "_.-" or unicodedata.category(c)[0] in "LNM" else " " for c in composed)
    return "-".join("".join(kept).split()).strip("-")


def front_matter(lines: list[str]) -> dict[str, str]:
    """The values of front matter by key, as text; nested structures are kept as the text they are."""
    out: dict[str, str] = {}
    at = 0
    while at < len(lines):
        found = _KEY.fullmatch(lines[at].rstrip())
        at += 1
        if not found:
            continue
        body: list[str] = []
        while at < len(lines) and (not lines[at].strip() or lines[at][0] in " \t"):
            body.append(lines[at])
            at += 1
        out.setdefault(found[1].lower(), _value((found[2] or "").strip(), body))
    return out


def _value(first: str, more: list[str]) -> str:
    texts = [line.strip() for line in more]
    while texts and not texts[-1]:
        texts.pop()
    block = _BLOCK.fullmatch(first)
    if block and block[1] == "|":
        return "\n".join(texts)
    if block:
        paragraphs = "\n".join(texts).split("\n\n")
        return "\n".join(" ".join(p.split("\n")) for p in paragraphs).strip()
    return _unquoted(" ".join([first, *filter(None, texts)]).strip())


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == '"':
        try:
            text = str(json.loads(value))
            text.encode()
        except ValueError:  # also where an escape leaves half a character
            return value[1:-1]
        return text
    if len(value) > 1 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'")
    return value
