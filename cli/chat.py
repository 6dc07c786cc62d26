"""``ggfw chat [MODEL]``: a conversation in the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggfw.cli import terminal
from ggfw.cli.generating import (
    check_tokens,
    conversation_options,
    generation_options,
    split_conversation_options,
    split_generation_options,
    stats_option,
)
from ggfw.cli.loading import load_options, split_load_options
from ggfw.cli.settings import setting, verb
from ggfw.errors import GenerationError, GgfwError, InvalidRequest

if TYPE_CHECKING:
    from ggfw import Model, Result

__all__ = ["chat", "chat_verb"]

HELP = """\
/clear          forget the conversation (the system prompt stays)
/system TEXT    set the system prompt; without TEXT: remove it
/regen          answer the last message again
/undo           forget the last message and its answer
/save FILE      write the conversation as JSON
/load FILE      go on with a saved conversation
/stats          show counts and speeds of the last answer
/show           show what the model is
/bye            leave (also Ctrl-D)
Three quotes (\"\"\") begin and end a message of several lines; // at the beginning stands for one /.
Ctrl-C stops an answer."""


@verb("chat")
@click.argument("model", required=False)
@conversation_options
@generation_options
@stats_option
@setting("--no-history", is_flag=True, help="Do not remember what was typed for the next time.")
@load_options
def chat_verb(model: str | None, models_dir: str | None, **options: Any) -> int:
    """Talk with MODEL; without it, choose one of the models that are there. /help lists the commands."""
    return chat(model, models_dir, options)


def chat(name: str | None, models_dir: str | None, options: dict[str, Any]) -> int:
    """Load a model and talk until the user leaves; returns the exit code.

    Args:
        name: MODEL as the user wrote it, or None.
        models_dir: the folder that the user named, if any.
        options: of the verb, by name.
    """
    from ggfw.cli.loading import load_model

    path = _model_path(name, models_dir)
    loading, generation = split_load_options(options), split_generation_options(options)
    with load_model(path, loading) as model, _Lines(not options.get("no_history")) as lines:
        check_tokens(generation, model.loaded.n_vocab)
        conversation = Conversation(model, options, generation)
        if terminal.interactive():
            terminal.say(f"{model.name} (/help lists the commands)")
        for line in lines:
            if not conversation.take(line):
                break
    return 0


def _model_path(name: str | None, models_dir: str | None) -> Path:
    """The file to load; without a name, on a terminal, the user picks when there are several models."""
    from ggfw.cli.resolve import find_model, pick

    if name is None and terminal.interactive():
        from ggfw.cli.folders import all_models

        usable = [entry for entry in all_models(models_dir) if entry.state == "ok"]
        if usable:
            return Path(usable[0].path if len(usable) == 1 else pick(usable).path)
    return find_model(name, models_dir, ask=True)


class Conversation:
    """The messages so far, and what the commands do with them.

    Args:
        model: who answers.
        options: of the verb: ``system``, ``stats``, reasoning and skills.
        generation: options of every answer.
    """

    def __init__(self, model: Model, options: dict[str, Any], generation: dict[str, Any]) -> None:
        self.model = model
        self.system: str | None = options["system"]
        self.messages: list[dict[str, Any]] = []
        self._how = split_conversation_options(options)
        self._stats: bool = options["stats"]
        self._generation = generation
        self._last: Result | None = None
        self._commands: dict[str, Callable[[str], None]] = {
            "help": lambda rest: terminal.say(HELP),
            "clear": lambda rest: self.messages.clear(),
            "system": self._set_system,
            "regen": lambda rest: self._regenerate(),
            "undo": lambda rest: self._undo(),
            "save": self._save,
            "load": self._load,
            "stats": lambda rest: self._show_stats(),
            "show": lambda rest: terminal.print_json(self.model.info),
        }

    def take(self, line: str) -> bool:
        """Take a message or a command; False means that the user leaves."""
        if line.startswith("/") and not line.startswith("//"):
            name, _, rest = line[1:].strip().partition(" ")
            if name in ("bye", "exit", "quit"):
                return False
            command = self._commands.get(name if name != "?" else "help")
            try:
                if command is None:
                    raise InvalidRequest(f"there is no command /{name}; /help lists them")
                command(rest.strip())
            except GgfwError as exc:
                self._report(exc)
        elif line.strip():
            self._say(line.removeprefix("/") if line.startswith("//") else line)
        return True

    def _say(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        self._answer()

    def _answer(self) -> None:
        """Let the model answer; what it said before it was stopped stays in the conversation."""
        from ggfw.cli.answering import AnswerStopped, say_stats, say_why_it_ended, write_answer

        system = [{"role": "system", "content": self.system}] if self.system else []
        try:
            messages = [*system, *self.messages]
            result = write_answer(self.model.submit_chat(messages, **self._how, **self._generation))
        except AnswerStopped as stopped:
            terminal.say("(stopped)")
            self._keep(stopped.partial)
        except GenerationError as exc:
            self._keep(exc.partial)
            self._report(exc)
        except GgfwError as exc:
            self.messages.pop()  # it was not answered: the next one must not follow it
            self._report(exc)
        else:
            self._keep(result)
            say_why_it_ended(result, self._generation.get("max_tokens"))
            if self._stats:
                say_stats(result)

    def _keep(self, result: Result | None) -> None:
        self._last = result
        if result is not None and result.text:
            self.messages.append({"role": "assistant", "content": result.text})
        else:
            self.messages.pop()

    @staticmethod
    def _report(exc: GgfwError) -> None:
        """Say what went wrong and go on; where nobody sits at the keyboard, it is the program's error."""
        if not terminal.is_terminal(sys.stdin):
            raise exc
        terminal.error(str(exc))

    # -- commands ------------------------------------------------------------------------------------------------

    def _set_system(self, rest: str) -> None:
        self.system = rest or None
        terminal.say("the system prompt is set" if rest else "the system prompt is removed")

    def _regenerate(self) -> None:
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if not self.messages:
            raise InvalidRequest("there is no message to answer again")
        self._answer()

    def _undo(self) -> None:
        if not self.messages:
            raise InvalidRequest("there is nothing to forget")
        while self.messages and self.messages.pop()["role"] != "user":
            pass

    def _save(self, rest: str) -> None:
        if not rest:
            raise InvalidRequest("/save needs the name of a file")
        data = {"model": self.model.name, "system": self.system, "messages": self.messages}
        text = json.dumps(data, indent=2, ensure_ascii=False)
        try:
            Path(rest).expanduser().write_text(text + "\n", encoding="utf-8", errors="replace")
        except OSError as exc:
            raise InvalidRequest(f"{rest} cannot be written: {exc.strerror}") from exc
        terminal.say(f"{len(self.messages)} messages written to {rest}")

    def _load(self, rest: str) -> None:
        try:
            data = json.loads(Path(rest).expanduser().read_text(encoding="utf-8"))
            messages, system = list(data["messages"]), data.get("system")
            good = all(isinstance(m["content"], str) and m["role"] in ("user", "assistant") for m in messages)
        except OSError as exc:
            raise InvalidRequest(f"{rest or 'the file'} cannot be read: {exc.strerror}") from exc
        except (ValueError, KeyError, TypeError, AttributeError):
            good = False
        if not good or not (system is None or isinstance(system, str)):
            raise InvalidRequest(f"{rest} is no saved conversation; /save writes one")
        self.messages, self.system = messages, system
        terminal.say(f"{len(messages)} messages read from {rest}")

    def _show_stats(self) -> None:
        from ggfw.cli.answering import say_stats

        if self._last is None:
            raise InvalidRequest("there has been no answer yet")
        say_stats(self._last)


class _Lines:
    """What the user types, message by message: lines, or blocks between three quotes.

    Args:
        remember: keep a history for the next time (on a terminal with readline).
    """

    def __init__(self, remember: bool) -> None:
        self._history: Path | None = None
        self._terminal = terminal.is_terminal(sys.stdin)
        if self._terminal and terminal.is_terminal(sys.stdout):
            self._set_up_editing(remember)

    def _set_up_editing(self, remember: bool) -> None:
        try:
            import readline
        except ImportError:  # Windows: the console edits lines by itself
            return
        if not remember:
            return
        from platformdirs import user_data_path

        self._history = user_data_path("ggfw", appauthor=False) / "chat_history"
        try:
            readline.read_history_file(self._history)
        except OSError:  # none yet
            pass

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *error: object) -> None:
        if self._history is None:
            return
        import readline

        try:
            self._history.parent.mkdir(parents=True, exist_ok=True)
            readline.set_history_length(1000)
            readline.write_history_file(self._history)
        except OSError as exc:
            terminal.say(f"ggfw: the history was not written: {exc}")

    def __iter__(self) -> Any:
        interrupted = False
        while True:
            try:
                text = self._message()
            except KeyboardInterrupt:
                if interrupted:
                    terminal.say("")
                    return
                interrupted = True
                terminal.say("\n(once more, Ctrl-D or /bye leaves)")
                continue
            except EOFError:
                if self._terminal:
                    terminal.say("")
                return
            interrupted = False
            yield text

    def _message(self) -> str:
        line = self._line("> ")
        if not line.startswith('"""'):
            return line
        block, line = [], line[3:]
        while not line.rstrip().endswith('"""'):
            block.append(line)
            line = self._line(". ")
        return "\n".join([*block, line.rstrip().removesuffix('"""')]).strip("\n")

    def _line(self, mark: str) -> str:
        """One line without its end; EOFError at the end of the input."""
        if self._terminal and terminal.is_terminal(sys.stdout):
            return input(mark)
        if self._terminal:
            sys.stderr.write(mark)
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")
