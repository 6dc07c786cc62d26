"""The typed error tree. Every message is one sentence: the thing, what was expected, the way out.

::

    GgfwError
    ├── ModelFileError            the file is damaged or not what it claims to be
    │   └── GGUFError             ... with the field and the byte offset
    ├── UnsupportedError          the file is fine, but nothing installed can run it
    │   ├── UnknownArchitecture
    │   ├── UnknownQuantFormat
    │   └── UnknownPreTokenizer
    ├── ModelNotFound             no model of that name
    ├── SourceError               a model source could not give a model
    ├── AmbiguousModel            several models match; the message names them
    ├── PluginError               a plugin broke the contract of its hook
    ├── BackendError              no kernel backend can be used, or its library does not fit
    ├── GraphError                an architecture described an impossible graph
    ├── InvalidRequest            a caller's value is out of range (``param`` names it)
    │   └── ContextLengthExceeded ... the prompt does not fit (``n_prompt_tokens``, ``n_ctx``)
    ├── TemplateError             the chat template refused, failed or ran over its limits
    ├── QueueFull                 too many waiting requests (``retry_after`` seconds)
    └── GenerationError           a running request failed
        ├── NonFiniteLogits       the model produced NaN or only infinities
        ├── ConstraintFailed      a grammar left nothing to go on with, or became too large
        ├── GenerationCanceled    (``partial`` holds the result so far)
        └── DeadlineExceeded      (``partial`` holds the result so far)

``cli`` maps every GgfwError to exit code 1 and one line; ``server`` maps types to status codes in one place.
"""

from __future__ import annotations

import os
from typing import Any

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


def brief(value: object, most: int = 80) -> str:
    """``repr`` of a value for a message; of what a file may make as long as it likes, only the beginning."""
    if isinstance(value, str | bytes) and len(value) > most:
        return f"{value[:most]!r}... ({len(value)} long)"
    try:
        text = repr(value)
    except Exception:  # an integer of more digits than Python shows, or an object of somebody else's
        text = f"one {type(value).__name__} that cannot be shown"
    return text if len(text) <= 2 * most else text[:most] + "..."


def said(error: BaseException) -> str:
    """What an error of somebody else's says, in one line; nothing where it says nothing, or cannot be shown."""
    try:
        return " ".join(str(error).split())
    except BaseException:  # of a class that a plugin made
        return ""


def kind_and_text(error: BaseException) -> str:
    """An error of somebody else's in one line, ``Type: message``."""
    text = said(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def with_place(error: BaseException) -> str:
    """:func:`kind_and_text`, and the line of somebody else's code in which it arose, if it is known."""
    place, frame = "", error.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if not file.startswith((_FOLDER, "<")) and f"{os.sep}importlib{os.sep}" not in file:
            place = f" ({os.path.basename(file)} line {frame.tb_lineno})"
        frame = frame.tb_next
    return f"{kind_and_text(error)}{place}"


class GgfwError(Exception):
    """Base of all errors that ggfw raises on purpose."""


class ModelFileError(GgfwError):
    """A model file is damaged, truncated or inconsistent."""


class GGUFError(ModelFileError):
    """A GGUF container is malformed; the message names the field and the byte offset."""


class CacheFileError(GgfwError):
    """A saved cache is damaged, or was made by another model, cache type or version."""


class UnsupportedError(GgfwError):
    """The file is well formed, but nothing installed can run it."""


class UnknownArchitecture(UnsupportedError):
    """No installed plugin serves this ``general.architecture``."""


class UnknownQuantFormat(UnsupportedError):
    """No installed plugin knows this ggml tensor type."""


class UnknownPreTokenizer(UnsupportedError):
    """No rule for this ``tokenizer.ggml.pre``."""


class ModelNotFound(GgfwError):
    """No model of that name, path or scheme."""


class SourceError(GgfwError):
    """A model source could not give what was asked for; the message names another way."""


class AmbiguousModel(GgfwError):
    """Several models match; the message names the candidates."""


class PluginError(GgfwError):
    """A plugin broke the contract of its hook."""


class BackendError(GgfwError):
    """No kernel backend can be used, or a kernel library does not fit this core."""


class GraphError(GgfwError):
    """An architecture described a graph that cannot be planned."""


class InvalidRequest(GgfwError, ValueError):
    """A caller's value is not acceptable.

    Args:
        message: the sentence shown to the user.
        param: name of the offending parameter, if there is one.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthExceeded(InvalidRequest):
    """The prompt does not fit the context: ``n_prompt_tokens`` tokens against ``n_ctx`` positions.

    Args:
        more: whether it has more than ``n_prompt_tokens``, which were counted until it was clear.
    """

    def __init__(self, n_prompt_tokens: int, n_ctx: int, *, more: bool = False) -> None:
        super().__init__(
            f"the prompt has {'more than ' if more else ''}{n_prompt_tokens} tokens and the context holds {n_ctx}; "
            "shorten it or raise the context size (--ctx)",
            param="messages",
        )
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx


class TemplateError(InvalidRequest):
    """The chat template refused the messages, failed, or ran over its limits."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="messages")


class QueueFull(GgfwError):
    """Too many requests are waiting; try again after ``retry_after`` seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class GenerationError(GgfwError):
    """A running request failed; ``partial`` holds what had been produced, or None."""

    def __init__(self, message: str, partial: Any = None) -> None:
        super().__init__(message)
        self.partial = partial


class NonFiniteLogits(GenerationError):
    """The model produced NaN, or no finite logit at all."""


class ConstraintFailed(GenerationError):
    """A constraint leads to a place where no token is allowed, or takes more than its bounds.

    ``param`` may name the field that asked for it.
    """

    param: str | None = None


class GenerationCanceled(GenerationError):
    """The caller canceled the request."""


class DeadlineExceeded(GenerationError):
    """The request's deadline passed."""
