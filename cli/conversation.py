"""A conversation in the terminal: its messages, and how the next answer is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ggfw.cli import terminal
from ggfw.cli.generating import read_tools, split_conversation_options
from ggfw.errors import ContextLengthExceeded, GenerationError, GgfwError, InvalidRequest

if TYPE_CHECKING:
    from ggfw import Model, Result, ToolCall
    from ggfw.cli.remote import RemoteModel

__all__ = ["Conversation"]

#: What the model is told by /compact, and how long its summary may be.
SUMMARIZE = (
    "Summarize our conversation so far in a few sentences, for yourself: keep names, numbers, decisions and open "
    "questions. Write nothing but the summary."
)
SUMMARY_TOKENS = 400
WAYS_OUT = (
    "/compact replaces the conversation by a summary, /undo forgets the last exchange, /clear forgets it all"
)


class Conversation:
    """The messages so far, and what is to be done with the next line.

    Args:
        model: who answers.
        options: of the verb: ``system``, ``stats``, ``tools``, reasoning and skills.
        generation: options of every answer.
        load: loads another model by name, or None where that is impossible.
        names: the names that ``load`` may be asked for.
    """

    def __init__(
        self,
        model: Model | RemoteModel,
        options: dict[str, Any],
        generation: dict[str, Any],
        load: Callable[[str], Model | RemoteModel] | None = None,
        names: Callable[[], list[str]] = list,
    ) -> None:
        from ggfw.cli.commands import Commands

        options = dict(options)
        self.model = model
        self.system: str | None = options["system"]
        self.summary: str | None = None
        self.messages: list[dict[str, Any]] = []
        self.generation = generation
        self.stats: bool = options["stats"]
        self.hide_thinking: bool = options.get("hide_thinking") or False
        self.markdown: bool = options.get("markdown") is not False
        self.load_model, self.model_names = load, names
        self.last: Result | None = None
        #: Calls of the last answer that wait for their results.
        self.calls: list[ToolCall] = []
        #: Texts of files that go with the next message.
        self.read: list[str] = []
        tools = options.pop("tools", None)
        self.how: dict[str, Any] = split_conversation_options(options)
        if tools:
            self.how["tools"] = read_tools(tools)
        self.commands = Commands(self)

    def mark(self) -> str:
        """What stands before the input."""
        return f"{self.calls[0].name} = " if self.calls else "> "

    def take(self, line: str) -> bool:
        """Take a message, a command, or the result of a tool; False means that the user leaves."""
        if line.startswith("/") and not line.startswith("//"):
            name, _, rest = line[1:].strip().partition(" ")
            if name in ("bye", "exit", "quit"):
                return False
            try:
                self.commands(name, rest.strip())
            except GgfwError as exc:
                self._report(exc)
            except KeyboardInterrupt:  # as while /model loads one
                if not terminal.is_terminal(sys.stdin):
                    raise
                terminal.say("(stopped)")
            return True
        text = line.removeprefix("/") if line.startswith("//") else line
        if self.calls:
            self._take_result(text)
        elif text.strip():
            self.say(text)
        return True

    def say(self, text: str) -> None:
        """Let the model answer a message of the user; when it cannot, files that went with it wait for the next one."""
        before, files = list(self.messages), list(self.read)
        self.read.clear()
        self.messages.append({"role": "user", "content": "\n\n".join([*files, text])})
        self.answer(before, files)

    def prompt(self, messages: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        """The conversation, or other messages in its place, as the model reads it."""
        parts = [self.system] if self.system else []
        if self.summary:
            parts.append(f"Summary of the conversation so far:\n{self.summary}")
        system = [{"role": "system", "content": "\n\n".join(parts)}] if parts else []
        return [*system, *(self.messages if messages is None else messages)]

    def answer(self, before: list[dict[str, Any]], files: list[str] | None = None) -> None:
        """Let the model answer; what it said before it was stopped stays in the conversation.

        Args:
            before: the messages to go back to when the request is refused.
            files: texts that went with the message, and wait for the next one then.
        """
        from ggfw.cli.answering import AnswerStopped, say_stats, say_why_it_ended

        handle: Any = None
        try:
            with terminal.without_echo():
                handle = self.model.submit_chat(self.prompt(), **self.how, **self.generation)
                result = self._written(handle)
        except AnswerStopped as stopped:
            terminal.say("(stopped)")
            self._keep(stopped.partial)
        except KeyboardInterrupt:  # before it began
            if handle is not None:
                handle.cancel()
            if not terminal.is_terminal(sys.stdin):
                raise
            self.messages[:], self.read[:] = before, files or []
            terminal.say("(stopped)")
        except GenerationError as exc:
            self._keep(exc.partial)
            self._report(exc)
        except GgfwError as exc:
            # It was not answered: the next message must not follow it.
            self.messages[:], self.read[:] = before, files or []
            if self.read and isinstance(exc, ContextLengthExceeded):
                self.read.clear()  # else no message would be short enough again
                terminal.say("ggfw: what /read read is too long, and is not sent with the next message")
            self._report(exc)
        else:
            self._keep(result)
            used = result.usage.total_tokens
            if result.finish_reason == "length" and used >= self.model.n_ctx > 0:
                terminal.say(
                    f"ggfw: the context is full: {used} of {self.model.n_ctx} tokens are used; {WAYS_OUT}"
                )
            else:
                say_why_it_ended(result, self.generation.get("max_tokens"))
            if self.stats:
                say_stats(result)

    def _written(self, handle: Any) -> Result:
        from ggfw.cli.answering import write_answer

        kind: dict[str, Any] = {
            "hide_thinking": self.hide_thinking,
            "state": lambda: self.model_state(handle),
        }
        if not (self.markdown and terminal.coloured(sys.stdout)):
            return write_answer(handle, **kind)
        from ggfw.cli.markdown import MarkdownWriter

        with MarkdownWriter() as writer:
            return write_answer(handle, writer=writer, **kind)

    def model_state(self, handle: Any) -> str:
        """How far the prompt of a request has been read, for people; empty when nothing is known."""
        engine = getattr(self.model, "engine", None)
        for work in engine.scheduler if engine is not None else ():
            if work.request.id == handle.id:
                read, n = min(work.n_fed, work.n_prompt), work.n_prompt
                if not work.t_start:
                    return "waiting"
                return f"reading the prompt: {read} of {n} tokens ({100 * read // max(n, 1)} %)"
        return ""

    def _keep(self, result: Result | None) -> None:
        self.last = result
        if result is None or not (result.text or result.tool_calls):
            self.forget_last()
            return
        message: dict[str, Any] = {"role": "assistant", "content": result.text}
        if result.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in result.tool_calls
            ]
            self.calls = list(result.tool_calls)
            terminal.say("(type the result of each call)")
        self.messages.append(message)

    def _take_result(self, text: str) -> None:
        call = self.calls.pop(0)
        self.messages.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text})
        if not self.calls:
            asked = max(i for i, message in enumerate(self.messages) if message["role"] == "user")
            self.answer(self.messages[:asked])

    def forget_last(self) -> str:
        """Forget the last message of the user and all that followed it; returns that message."""
        self.calls.clear()
        while self.messages:
            message = self.messages.pop()
            if message["role"] == "user":
                return str(message["content"])
        return ""

    def forget(self) -> None:
        """Forget the conversation; the system prompt stays."""
        self.messages.clear()
        self.calls.clear()
        self.read.clear()
        self.summary = None

    def compact(self) -> None:
        """Replace the conversation by the model's own summary of it; the last exchange stays as it is.

        Raises:
            InvalidRequest: there is nothing to summarize, or no summary was given.
            GenerationError: it failed.
        """
        from ggfw.cli.answering import AnswerStopped, write_answer
        from ggfw.cli.progress import waiting

        turns = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        if len(turns) < 2 and not self.summary:
            raise InvalidRequest("there is nothing to summarize yet; /clear forgets the conversation")
        if self.calls:
            raise InvalidRequest("a call waits for its result; give it first, or /undo it")
        asked = {"role": "user", "content": SUMMARIZE}
        kept = {key: value for key, value in self.how.items() if key in ("think", "reasoning_effort")}
        begins = iter(turns[1:])
        messages = self.prompt([*self.messages, asked])
        while not self._has_room(
            messages
        ):  # what is too long even for this loses its beginning to the summary
            first = next(begins, None)
            if first is None:
                raise InvalidRequest(
                    f"even the last exchange alone leaves no room for a summary in a context of {self.model.n_ctx}; "
                    "/undo forgets it, /clear forgets all"
                )
            messages = self.prompt([*self.messages[first:], asked])
        try:
            limits = {**self.generation, "max_tokens": SUMMARY_TOKENS}
            with terminal.without_echo(), waiting("summarizing"):
                result = write_answer(self.model.submit_chat(messages, **kept, **limits), quiet=True)
        except AnswerStopped:
            terminal.say("(stopped; the conversation stays as it was)")
            return
        if not result.text.strip():
            raise InvalidRequest("the model gave no summary; the conversation stays as it was")
        gone = self.messages[: turns[-1]] if turns else []
        self.summary, self.messages = result.text.strip(), self.messages[len(gone) :]
        terminal.say(f"{len(gone)} messages became a summary of {len(self.summary)} characters:")
        terminal.say(terminal.harmless(self.summary))

    def _has_room(self, messages: list[dict[str, Any]]) -> bool:
        """Whether a summary can be written behind ``messages``."""
        request = getattr(self.model, "chat_request", None)
        if request is None:
            return True  # a server judges by itself
        return len(request(messages).prompt) + min(SUMMARY_TOKENS, self.model.n_ctx // 4) <= self.model.n_ctx

    @staticmethod
    def _report(exc: GgfwError) -> None:
        """Say what went wrong and go on; where nobody sits at the keyboard, it is the program's error."""
        if not terminal.is_terminal(sys.stdin):
            raise exc
        terminal.error(str(exc))
        if isinstance(exc, ContextLengthExceeded):
            terminal.say(WAYS_OUT)
