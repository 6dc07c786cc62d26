"""What the user types in a chat, message by message: an editor on a terminal, plain lines elsewhere.

The editor (prompt_toolkit) has a history, completes commands and file names, takes pasted lines as they are, breaks a
line at Alt-Enter and opens ``$EDITOR`` at Ctrl-G. Everywhere three quotes begin and end a message of several lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ggfw.cli import terminal

__all__ = ["Lines", "history_path", "user_folder"]

#: Messages that the history keeps.
MAX_HISTORY = 1000


def user_folder() -> Path:
    """Return the folder for what a user of ggfw leaves behind: history and the last conversation."""
    from platformdirs import user_data_path

    return user_data_path("ggfw", appauthor=False)


def history_path() -> Path:
    """Return the file of what was typed in chats."""
    return user_folder() / "chat_history"


class Lines:
    """Iterate over it to get messages and commands.

    Args:
        remember: keep a history for the next time (in the editor).
        commands: names that are completed behind a slash.
        mark: gives what stands before the input.
    """

    def __init__(
        self, remember: bool, commands: Iterable[str] = (), mark: Callable[[], str] = lambda: "> "
    ) -> None:
        self._mark = mark
        self._terminal = terminal.is_terminal(sys.stdin)
        self._history: Path | None = None
        self._editor: Any = None
        if self._terminal and terminal.is_terminal(sys.stdout):
            self._history = history_path() if remember else None
            self._editor = _editor(self._history, tuple(commands))

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        if self._history is not None:
            _shorten(self._history)

    def __iter__(self) -> Iterator[str]:
        interrupted = False
        while True:
            try:
                text = self._message()
            except KeyboardInterrupt:
                if interrupted:
                    terminal.say("")
                    return
                interrupted = True
                terminal.say(
                    "(once more, Ctrl-D or /bye leaves)"
                    if self._editor
                    else "\n(once more, Ctrl-D or /bye leaves)"
                )
                continue
            except EOFError:
                if self._terminal:
                    terminal.say("")
                return
            interrupted = False
            yield text

    def _message(self) -> str:
        line = self._line(self._mark())
        if not line.startswith('"""'):
            return line
        block, line = [], line[3:]
        while not line.rstrip().endswith('"""'):
            block.append(line)
            line = self._line(". ")
        return "\n".join([*block, line.rstrip().removesuffix('"""')]).strip("\n")

    def _line(self, mark: str) -> str:
        """One line without its end (from the editor: perhaps several); EOFError at the end of the input."""
        if self._editor is not None:
            return str(self._editor.prompt(mark))
        if self._terminal:
            sys.stderr.write(mark)
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")


def _editor(history: Path | None, commands: tuple[str, ...]) -> Any:
    """A session of prompt_toolkit."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.enums import DEFAULT_BUFFER
    from prompt_toolkit.filters import has_focus
    from prompt_toolkit.history import FileHistory, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: Any) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("escape", "c-j")  # as it arrives when it was typed before the editor was there
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c", filter=has_focus(DEFAULT_BUFFER))
    def _(event: Any) -> None:
        if event.current_buffer.text:  # throws away what is typed; only an empty line leaves
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    @keys.add("c-g")
    def _(event: Any) -> None:
        event.current_buffer.open_in_editor(validate_and_handle=False)

    kept: Any = InMemoryHistory()
    if history is not None and _prepared(history):
        kept = FileHistory(str(history))
    return PromptSession(
        history=kept,
        key_bindings=keys,
        multiline=True,  # lines may be broken; what Enter does is bound above
        prompt_continuation=lambda width, number, wrapped: ". ".rjust(width),
        completer=_completer(commands),
        complete_while_typing=False,
        enable_open_in_editor=True,
    )


def _completer(commands: tuple[str, ...]) -> Any:
    """Completes ``/comm…``, and file names behind the commands that take one."""
    from prompt_toolkit.completion import Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    paths = PathCompleter(expanduser=True)

    class Commands(Completer):
        def get_completions(self, document: Document, event: Any) -> Iterator[Completion]:
            text = document.text_before_cursor
            name, blank, rest = text.partition(" ")
            if not text.startswith("/"):
                return
            if not blank:
                for command in commands:
                    if command.startswith(name[1:]):
                        yield Completion(f"/{command}", start_position=-len(name))
            elif name in ("/load", "/save", "/read", "/tools", "/skills", "/model"):
                yield from paths.get_completions(Document(rest), event)

    return Commands()


def _prepared(path: Path) -> bool:
    """Make the history's file, which only its owner may read; False where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    except OSError as exc:
        terminal.say(f"ggfw: there will be no history: {exc}")
        return False
    return True


def _shorten(path: Path) -> None:
    """Keep the last entries of a history: each is a comment with the time, and lines that begin with +."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        entries = text.split("\n# ")
        if len(entries) <= MAX_HISTORY:
            return
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        with open(
            os.open(fresh, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write("\n# " + "\n# ".join(entries[-MAX_HISTORY:]))
        fresh.replace(path)
    except OSError as exc:
        terminal.say(f"ggfw: the history was not shortened: {exc}")
