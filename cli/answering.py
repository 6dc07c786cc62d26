"""Writing an answer while it comes: text to stdout piece by piece, everything else to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from ggfw.cli import terminal

if TYPE_CHECKING:
    from ggfw import Handle, Result, Stream
    from ggfw.chat.skill_handle import SkillHandle
    from ggfw.cli.remote import RemoteHandle

__all__ = [
    "AnswerStopped",
    "Writer",
    "peak_rss",
    "result_object",
    "say_stats",
    "say_why_it_ended",
    "write_answer",
]


class AnswerStopped(KeyboardInterrupt):
    """The user stopped an answer; ``partial`` is the result so far, or None."""

    def __init__(self, partial: Result | None) -> None:
        super().__init__()
        self.partial = partial


class Writer(Protocol):
    """Takes the text of an answer: :class:`ggfw.cli.markdown.MarkdownWriter`, or plain text."""

    def write(self, text: str) -> None:
        """Show more text."""

    def pause(self) -> None:
        """End the line; something else is written then."""


class _Plain:
    """Text as it is."""

    def __init__(self) -> None:
        self._ends_line = True

    def write(self, text: str) -> None:
        terminal.write(text)
        self._ends_line = text.endswith("\n")

    def pause(self) -> None:
        if not self._ends_line:
            terminal.write("\n")
            self._ends_line = True


class _Aside:
    """What goes to stderr beside an answer: reasoning (dimmed) and calls of tools."""

    def __init__(self, hide_thinking: bool) -> None:
        self._hide = hide_thinking
        self._dim, self._plain = ("\x1b[2m", "\x1b[0m") if terminal.coloured(sys.stderr) else ("", "")
        self._thinking = self._calls = False

    def reasoning(self, text: str) -> None:
        if self._hide:
            text = "" if self._thinking else "(thinking)"
        text = terminal.harmless(text)
        self._put(text if self._thinking else self._dim + text)
        self._thinking = True

    def call(self, name: str, arguments: str) -> None:
        self.end_reasoning()
        text = terminal.harmless(arguments)
        self._put(f"\n{name} {text}" if name else text)
        self._calls = True

    def end_reasoning(self) -> None:
        if self._thinking:
            terminal.say(self._plain)
            self._thinking = False

    def end(self) -> None:
        self.end_reasoning()
        if self._calls:
            terminal.say("")

    @staticmethod
    def _put(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def write_answer(
    handle: Handle | SkillHandle | RemoteHandle,
    *,
    quiet: bool = False,
    writer: Writer | None = None,
    hide_thinking: bool = False,
    state: Callable[[], str] | None = None,
) -> Result:
    """Write the text of an answer as it comes; returns the result.

    Args:
        handle: of the request.
        quiet: write nothing.
        writer: takes the text; None: it is written as it is.
        hide_thinking: say only that there is reasoning.
        state: says how far the prompt has been read; asked, and shown on a terminal, until the first text comes.

    Raises:
        GenerationError: it failed or its time was over; what had come is written.
        AnswerStopped: the user pressed Ctrl-C; the request is canceled.
    """
    from ggfw import ReasoningDelta, Stream, TextDelta

    writer, aside = writer or _Plain(), _Aside(hide_thinking)
    with Stream(handle) as stream, _watching(None if quiet else state) as shown:  # type: ignore[arg-type]
        try:
            for delta in stream.deltas():
                shown()
                if quiet:
                    continue
                if isinstance(delta, ReasoningDelta):
                    writer.pause()
                    aside.reasoning(delta.text)
                elif isinstance(delta, TextDelta):
                    aside.end_reasoning()
                    writer.write(delta.text)
                else:
                    writer.pause()
                    aside.call(delta.name, delta.arguments)
        except KeyboardInterrupt:
            raise AnswerStopped(_canceled(stream)) from None
        finally:
            shown()
            writer.pause()
            aside.end()
        return stream.result()


def _watching(state: Callable[[], str] | None) -> AbstractContextManager[Callable[[], None]]:
    from ggfw.cli.progress import waiting

    return nullcontext(lambda: None) if state is None else waiting(state, 1.0)


def _canceled(stream: Stream) -> Result | None:
    """Cancel a request; returns what it had by then."""
    from ggfw import GenerationError

    stream.close()
    try:
        return stream.result()
    except GenerationError as exc:
        return exc.partial  # type: ignore[no-any-return]


def say_why_it_ended(result: Result, max_tokens: int | None) -> None:
    """Say on stderr when an answer was cut off, and by what."""
    if result.finish_reason != "length":
        return
    n = result.usage.completion_tokens
    if max_tokens is not None and n >= max_tokens > 0:
        terminal.say(f"ggfw: stopped after {n} tokens; --max-tokens sets the limit")
    else:
        terminal.say(f"ggfw: stopped after {n} tokens, at the end of the context; --ctx sets its size")


def say_stats(result: Result) -> None:
    """Write counts, times and speeds of an answer to stderr."""
    usage, timings = result.usage, result.timings
    terminal.say(
        f"ggfw: load {timings.load:.0f} ms, first token after {timings.ttft:.0f} ms; "
        f"prompt {usage.prompt_tokens} tokens ({usage.cached_tokens} cached), "
        f"{timings.prompt_per_second:.1f}/s; answer {usage.completion_tokens} tokens, "
        f"{timings.decode_per_second:.1f}/s; peak memory {peak_rss() / 1e6:.0f} MB; seed {result.seed}"
    )


def peak_rss() -> int:
    """Return the largest resident size of this process so far, in bytes; 0 where the system does not say."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    except (OSError, StopIteration, ValueError):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def result_object(result: Result) -> dict[str, Any]:
    """Return the object of ``ggfw run --json``."""
    whole = result.to_dict()
    keys = ("text", "reasoning", "tool_calls", "finish_reason", "token_ids", "usage", "timings")
    shown = {key: whole[key] for key in keys} | {
        "usage": {**whole["usage"], "total_tokens": result.usage.total_tokens}
    }
    if result.logprobs is not None:
        shown["logprobs"] = whole["logprobs"]
    return shown
