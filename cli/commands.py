"""The commands of a chat: everything that begins with a slash."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggfw.cli import terminal
from ggfw.errors import InvalidRequest

if TYPE_CHECKING:
    from ggfw.cli.conversation import Conversation

__all__ = ["HELP", "NAMES", "Commands", "read_conversation", "write_conversation"]

HELP = """\
/help           show this
/clear          forget the conversation (the system prompt stays)
/undo           forget the last message and its answer
/compact        replace the conversation by a summary of it
/regen          answer the last message again
/system TEXT    set the system prompt; without TEXT: remove it
/set NAME VALUE set an option of sampling or ending (temp, top-k, stop, ...);
                without VALUE: its default; without NAME: list what is set.
                Also /set verbose, quiet, think, nothink
/think WORD     on, off, or an effort (low, medium, high, ...);
                without WORD: as the model does it
/tools FILE     offer the tools of a JSON file; off: none; without FILE: list
/skills DIR     offer the skills of a folder; off: none; without DIR: list
/read FILE      send the text of a file with the next message
/model NAME     go on with another model; without NAME: list the models
/save FILE      write the conversation as JSON
/load FILE      go on with a saved conversation
/stats          show counts and speeds of the last answer
/show           show what the model is
/bye            leave (also Ctrl-D)
Three quotes (\"\"\") begin and end a message of several lines, Alt-Enter breaks
a line, Ctrl-G opens $EDITOR; // at the beginning stands for one /. Ctrl-C stops
an answer."""

NAMES = (
    "help", "clear", "undo", "compact", "regen", "system", "set", "think", "tools", "skills", "read", "model", "save",
    "load", "stats", "show", "bye",
)  # fmt: skip

_ON, _OFF = ("on", "yes", "true"), ("off", "no", "false")

#: Ollama's names of options.
_OLLAMA = {"num_predict": "max-tokens", "temperature": "temp", "repeat_last_n": "repeat-last-n"}


class Commands:
    """The commands of one conversation. Each raises :class:`InvalidRequest` with a sentence when it cannot be done."""

    def __init__(self, talk: Conversation) -> None:
        self.talk = talk
        self._table: dict[str, Callable[[str], None]] = {
            "help": lambda rest: terminal.say(HELP),
            "?": lambda rest: terminal.say(HELP),
            "clear": self._clear,
            "undo": self._undo,
            "compact": lambda rest: talk.compact(),
            "regen": self._regenerate,
            "system": self._system,
            "set": self._set,
            "think": self._think,
            "tools": self._tools,
            "skills": self._skills,
            "read": self._read,
            "model": self._model,
            "save": self._save,
            "load": self._load,
            "stats": self._stats,
            "show": lambda rest: terminal.print_json(talk.model.info),
        }

    def __call__(self, name: str, rest: str) -> None:
        """Carry out ``/name rest``."""
        command = self._table.get(name)
        if command is None:
            from difflib import get_close_matches

            near = get_close_matches(name, NAMES, n=1)
            hint = f"; did you mean /{near[0]}?" if near else "; /help lists them"
            raise InvalidRequest(f"there is no command /{name}{hint}")
        command(rest)

    # -- the conversation ----------------------------------------------------------------------------------------

    def _undo(self, rest: str) -> None:
        if not self.talk.messages:
            raise InvalidRequest("there is nothing to forget")
        asked = self.talk.forget_last()
        terminal.say(f"forgotten: {terminal.harmless(' '.join(asked.split()))[:60]!r} and what followed it")

    def _clear(self, rest: str) -> None:
        self.talk.forget()
        terminal.say("the conversation is forgotten")

    def _regenerate(self, rest: str) -> None:
        talk = self.talk
        before = list(talk.messages)
        while talk.messages and talk.messages[-1]["role"] != "user":
            talk.messages.pop()
        if not talk.messages:
            raise InvalidRequest("there is no message to answer again")
        calls = list(talk.calls)
        talk.calls.clear()
        talk.answer(before)
        if talk.messages == before:  # refused
            talk.calls = calls

    def _system(self, rest: str) -> None:
        self.talk.system = rest or None
        terminal.say("the system prompt is set" if rest else "the system prompt is removed")

    def _read(self, rest: str) -> None:
        text = _text_of(rest, "/read")
        self.talk.read.append(f"{Path(rest).name}:\n{text}")
        terminal.say(f"{len(text)} characters of {rest} go with the next message")

    def _save(self, rest: str) -> None:
        if not rest:
            raise InvalidRequest("/save needs the name of a file")
        try:
            write_conversation(self.talk, Path(rest).expanduser())
        except OSError as exc:
            raise InvalidRequest(f"{rest} cannot be written: {exc.strerror}") from exc
        terminal.say(f"{len(self.talk.messages)} messages written to {rest}")

    def _load(self, rest: str) -> None:
        read_conversation(self.talk, _text_of(rest, "/load"), rest)
        terminal.say(f"{len(self.talk.messages)} messages read from {rest}")

    def _stats(self, rest: str) -> None:
        from ggfw.cli.answering import say_stats

        if self.talk.last is None:
            raise InvalidRequest("there has been no answer yet")
        say_stats(self.talk.last)

    def _model(self, rest: str) -> None:
        if self.talk.load_model is None:
            raise InvalidRequest("another model cannot be loaded here; start `ggfw chat MODEL` again")
        if not rest:
            names = self.talk.model_names()
            terminal.say("\n".join(names) or "there are no models in the folders; `ggfw pull` fetches some")
            return
        self.talk.model = self.talk.load_model(rest)
        terminal.say(f"{self.talk.model.name} answers now")

    # -- options -------------------------------------------------------------------------------------------------

    def _set(self, rest: str) -> None:
        talk = self.talk
        name, _, value = rest.removeprefix("parameter ").strip().partition(" ")
        value = value.strip()
        if not name:
            for key, given in {**talk.how, **talk.generation}.items():
                terminal.say(f"{key} = {_shown(given)}")
        elif name in ("verbose", "quiet"):
            talk.stats = name == "verbose"
        elif name in ("think", "nothink"):
            self._think(value or ("on" if name == "think" else "off"))
        elif name == "system":
            self._system(value)
        else:
            self._set_option(name, value)

    def _set_option(self, name: str, value: str) -> None:
        from ggfw.cli.generating import check_tokens, split_generation_options

        param = self._options.get(_OLLAMA.get(name, name).lstrip("-").replace("_", "-"))
        if param is None:
            from difflib import get_close_matches

            near = get_close_matches(name.replace("_", "-"), self._options, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else "/help names them"
            raise InvalidRequest(f"there is no option {name!r} to set in a conversation; {hint}")
        import click

        empty = {p.name: () if p.multiple else None for p in self._options.values()}
        try:
            context = click.Context(click.Command("set"))
            read = param.type_cast_value(context, (value,) if param.multiple else value) if value else None
        except click.UsageError as exc:
            raise InvalidRequest(f"{name}: {exc.message}") from None
        taken = split_generation_options({**empty, **({param.name: read} if read is not None else {})})
        generation = dict(self.talk.generation)
        for key in (
            param.name or "",
            "dry_sequence_breakers" if param.name == "dry_sequence_breaker" else "",
        ):
            generation.pop(key, None)
        generation |= taken
        request = getattr(self.talk.model, "request", None)
        if request is not None:
            check_tokens(generation, self.talk.model.loaded.n_vocab)  # type: ignore[union-attr]
            request([0], **generation)  # says what is wrong with a value
        self.talk.generation = generation
        terminal.say(f"{name} = {_shown(read)}" if value else f"{name} has its default again")

    @cached_property
    def _options(self) -> dict[str, Any]:
        """The options of generation by their long names."""
        from ggfw.cli.generating import generation_options
        from ggfw.cli.settings import Setting, verb

        command = verb("set")(generation_options(lambda **options: None))
        return {key: param for param in command.params if isinstance(param, Setting) for key in param.keys}

    def _think(self, rest: str) -> None:
        from ggfw.chat.reasoning import EFFORTS

        if rest and rest not in (*_ON, *_OFF, *EFFORTS):
            raise InvalidRequest(f"/think takes on, off, or {', '.join(EFFORTS)}, not {rest!r:.40}")
        how = self.talk.how
        for key in ("think", "reasoning_effort"):
            how.pop(key, None)
        if rest in (*_ON, *_OFF):
            how["think"] = rest in _ON
        elif rest:
            how["reasoning_effort"] = rest
        terminal.say(f"reasoning: {rest or 'as the model does it'}")

    def _tools(self, rest: str) -> None:
        from ggfw.cli.generating import read_tools

        how = self.talk.how
        if rest == "off":
            how.pop("tools", None)
        elif rest:
            _text_of(rest, "/tools")
            how["tools"] = read_tools(str(Path(rest).expanduser()))
        names = [(tool.get("function") or tool).get("name", "?") for tool in how.get("tools", ())]
        terminal.say(f"tools: {', '.join(names) or 'none'}")

    def _skills(self, rest: str) -> None:
        how = self.talk.how
        if rest == "off":
            how.pop("skills", None)
        elif rest:
            from ggfw import load_skills

            how["skills"] = skills = load_skills(str(Path(rest).expanduser()))
            for warning in skills.warnings:
                terminal.say(f"ggfw: {warning}")
        terminal.say(f"skills: {', '.join(how.get('skills', ())) or 'none'}")


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple) and value and isinstance(value[0], dict):
        return f"{len(value)} of them"
    return json.dumps(value, default=lambda v: str(v)[:60], ensure_ascii=False)


def _text_of(name: str, command: str) -> str:
    if not name:
        raise InvalidRequest(f"{command} needs the name of a file")
    try:
        return Path(name).expanduser().read_text(encoding="utf-8")
    except OSError as exc:
        raise InvalidRequest(f"{name} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name} is no text in UTF-8") from None


def write_conversation(talk: Conversation, path: Path) -> None:
    """Write a conversation as JSON: ``model``, ``system``, ``summary`` (where there is one), ``messages``."""
    data = {"model": talk.model.name, "system": talk.system, "messages": talk.messages}
    if talk.summary:
        data["summary"] = talk.summary
    text = json.dumps(data, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8", errors="replace")


def read_conversation(talk: Conversation, text: str, name: str) -> None:
    """Take over what :func:`write_conversation` wrote.

    Raises:
        InvalidRequest: ``text``, which is that of the file ``name``, is something else.
    """
    try:
        data = json.loads(text)
        messages = list(data["messages"])
        system, summary = data.get("system"), data.get("summary")
        good = all(
            isinstance(m["content"], str) and m["role"] in ("user", "assistant", "tool") for m in messages
        )
        good = good and all(m["role"] != "tool" or "tool_call_id" in m for m in messages)
    except (ValueError, KeyError, TypeError, AttributeError):
        good = False
    if not good or not all(value is None or isinstance(value, str) for value in (system, summary)):
        raise InvalidRequest(f"{name} is no saved conversation; /save writes one")
    talk.forget()
    talk.messages, talk.system, talk.summary = messages, system, summary
