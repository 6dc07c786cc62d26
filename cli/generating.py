"""The options of every verb that generates text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ggfw.cli.settings import setting
from ggfw.errors import InvalidRequest

__all__ = [
    "check_tokens",
    "generation_options",
    "sampling_options",
    "split_generation_options",
    "stats_option",
    "system_option",
    "template_args",
    "think_option",
]

_SAMPLING = (
    setting("--max-tokens", "-n", type=int, help="Tokens to write at most; -1: to the end of the context."),
    setting(
        "--temp", "--temperature", "temperature", type=float, help="Temperature; 0: always the best token."
    ),
    setting("--top-k", type=int, help="Only the K best tokens; 0: all."),
    setting("--top-p", type=float, help="Only the best tokens that have this probability together."),
    setting("--min-p", type=float, help="Only tokens with this share of the best one's probability."),
    setting("--typical-p", type=float, help="Locally typical sampling; 1: off."),
    setting("--repeat-penalty", type=float, help="Divide the logits of recent tokens; 1: off."),
    setting("--repeat-last-n", type=int, help="How many tokens count as recent; -1: all."),
    setting("--frequency-penalty", type=float, help="Subtract this per recent occurrence; 0: off."),
    setting("--presence-penalty", type=float, help="Subtract this from recent tokens; 0: off."),
    setting(
        "--logit-bias", multiple=True, metavar="ID=X", help="Add X to the logit of token ID. Repeatable."
    ),
    setting("--seed", type=int, help="Seed of the random numbers; -1: a fresh one."),
)

_ENDING = (
    setting("--stop", multiple=True, metavar="TEXT", help="End the answer before TEXT. Repeatable."),
    setting("--timeout", type=float, metavar="SECONDS", help="Give up after so many seconds."),
    setting("--ignore-eos", is_flag=True, help="Go on after the model has ended its answer."),
)

_KEYS = (
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "repeat_last_n",
    "frequency_penalty", "presence_penalty", "logit_bias", "seed", "stop", "timeout", "ignore_eos",
)  # fmt: skip


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a verb with the options of sampling."""
    for option in reversed(_SAMPLING):
        command = option(command)
    return command


def generation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a verb with the options of sampling and of ending an answer."""
    for option in reversed(_ENDING):
        command = option(command)
    return sampling_options(command)


def split_generation_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take the generation options out of a verb's options, named as the library names them; only those given.

    Raises:
        InvalidRequest: a timeout that is not positive, a malformed ``--logit-bias``.
    """
    taken = {key: options.pop(key) for key in _KEYS if key in options}
    timeout = taken.get("timeout")
    if timeout is not None and not timeout > 0:
        raise InvalidRequest(f"timeout is {timeout:g}; a positive number of seconds was expected", "timeout")
    taken["logit_bias"] = dict(map(_bias, taken["logit_bias"])) or None
    taken["stop"] = [text for text in taken.get("stop", ()) if text] or None
    return {key: value for key, value in taken.items() if value is not None and value is not False}


def _bias(text: str) -> tuple[int, float]:
    token, equals, addend = text.partition("=")
    try:
        return int(token), float(addend)
    except ValueError:
        raise InvalidRequest(
            f"logit-bias {text!r} is malformed; expected ID=X, such as 17=-2.5 or 17=-inf", "logit_bias"
        ) from None


def check_tokens(generation: dict[str, Any], n_vocab: int) -> None:
    """Check that ``logit_bias`` names tokens of the loaded vocabulary.

    Raises:
        InvalidRequest: it names another one, which would have no effect.
    """
    for token in generation.get("logit_bias", ()):
        if token >= n_vocab:
            raise InvalidRequest(
                f"logit-bias names token {token}; the vocabulary has {n_vocab}", "logit_bias"
            )


think_option = setting(
    "--think/--no-think",
    default=None,
    help="Let the template switch reasoning on or off, where the model's template can.",
)
system_option = setting("--system", metavar="TEXT", help="System prompt; default: none.")
stats_option = setting("--stats", is_flag=True, help="Write counts and speeds to stderr at the end.")


def template_args(think: bool | None) -> dict[str, Any] | None:
    """Return the template variables that switch reasoning."""
    return None if think is None else {"enable_thinking": think}
