"""Writing an answer while it comes: text to stdout piece by piece, everything else to stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ggfw.cli import terminal

if TYPE_CHECKING:
    from ggfw import Handle, Result, Stream
    from ggfw.chat.skill_handle import SkillHandle

__all__ = ["AnswerStopped", "peak_rss", "result_object", "say_stats", "say_why_it_ended", "write_answer"]


class AnswerStopped(KeyboardInterrupt):
    """The user stopped an answer; ``partial`` is the result so far, or None."""

    def __init__(self, partial: Result | None) -> None:
        super().__init__()
        self.partial = partial


def write_answer(handle: Handle | SkillHandle, *, quiet: bool = False) -> Result:
    """Write the text of an answer as it comes; returns the result.

    Args:
        handle: of the request.
        quiet: write nothing.

    Raises:
        GenerationError: it failed or its time was over; what had come is written.
        AnswerStopped: the user pressed Ctrl-C; the request is canceled.
    """
    from ggfw import ReasoningDelta, Stream, TextDelta

    dim, plain = ("\x1b[2m", "\x1b[0m") if terminal.coloured(sys.stderr) else ("", "")
    ends_line = True
    thinking = calls = False
    with Stream(handle) as stream:
        try:
            for delta in stream.deltas():
                if quiet:
                    continue
                if isinstance(delta, ReasoningDelta):
                    sys.stderr.write(delta.text if thinking else dim + delta.text)
                    sys.stderr.flush()
                    thinking = True
                elif isinstance(delta, TextDelta):
                    if thinking:
                        terminal.say(plain)
                        thinking = False
                    terminal.write(delta.text)
                    ends_line = delta.text.endswith("\n")
                else:
                    sys.stderr.write(f"\n{delta.name} {delta.arguments}" if delta.name else delta.arguments)
                    sys.stderr.flush()
                    calls = True
        except KeyboardInterrupt:
            raise AnswerStopped(_canceled(stream)) from None
        finally:
            if thinking:
                terminal.say(plain)
            if calls:
                terminal.say("")
            if not ends_line:
                terminal.write("\n")
        return stream.result()


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
