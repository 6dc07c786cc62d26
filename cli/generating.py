"""The options of every verb that generates text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ggfw.cli import terminal
from ggfw.cli.settings import setting
from ggfw.errors import InvalidRequest

__all__ = [
    "check_tokens",
    "conversation_options",
    "generation_options",
    "read_tools",
    "resolved_options",
    "sampling_options",
    "split_conversation_options",
    "split_generation_options",
    "stats_option",
]

_SAMPLING = (
    setting("--max-tokens", "-n", type=int, help="Tokens to write at most; -1: to the end of the context."),
    setting(
        "--temp", "--temperature", "temperature", type=float, help="Temperature; 0: always the best token."
    ),
    setting("--top-k", type=int, help="Only the K best tokens; 0: all."),
    setting("--top-p", type=float, help="Only the best tokens that have this probability together."),
    setting("--min-p", type=float, help="Only tokens with this share of the best one's probability."),
    setting("--typical-p", "--typical", type=float, help="Locally typical sampling; 1: off."),
    setting("--top-n-sigma", type=float, help="Only logits within N deviations of the best; -1: off."),
    setting("--xtc-probability", type=float, help="Chance of dropping the likeliest tokens; 0: off."),
    setting("--xtc-threshold", type=float, help="Probability from which on XTC drops tokens."),
    setting("--min-keep", type=int, help="Tokens that top-p, min-p, typical-p and XTC leave at least."),
    setting("--dynatemp-range", type=float, help="Vary the temperature by this with the entropy; 0: off."),
    setting(
        "--dynatemp-exp", "--dynatemp-exponent", type=float, help="How the entropy maps into that range."
    ),
    setting("--mirostat", type=int, help="Steer the surprise of the text: version 1 or 2; 0: off."),
    setting("--mirostat-tau", "--mirostat-ent", type=float, help="Surprise that mirostat aims at, in bits."),
    setting("--mirostat-eta", "--mirostat-lr", type=float, help="Mirostat's learning rate."),
    setting("--adaptive-target", type=float, help="Prefer tokens near this probability; -1: off."),
    setting("--adaptive-decay", type=float, help="Memory of adaptive-p, 0 to 0.99."),
    setting("--repeat-penalty", type=float, help="Divide the logits of recent tokens; 1: off."),
    setting("--repeat-last-n", type=int, help="How many tokens count as recent; -1: all."),
    setting("--frequency-penalty", type=float, help="Subtract this per recent occurrence; 0: off."),
    setting("--presence-penalty", type=float, help="Subtract this from recent tokens; 0: off."),
    setting("--dry-multiplier", type=float, help="Penalty on verbatim repetition; 0: off."),
    setting("--dry-base", type=float, help="DRY's penalty grows by this factor per repeated token."),
    setting("--dry-allowed-length", type=int, help="Repetitions of fewer tokens are free."),
    setting("--dry-penalty-last-n", type=int, help="Tokens that DRY looks back; -1: all."),
    setting(
        "--dry-sequence-breaker",
        multiple=True,
        metavar="TEXT",
        help="No repetition reaches over TEXT; replaces the defaults; none: there are none. Repeatable.",
    ),
    setting(
        "--samplers",
        "--sampler-seq",
        metavar="NAMES",
        help="Stages in their order: a;b;c or letters (edskypmxt).",
    ),
    setting(
        "--sampling-profile",
        metavar="NAME",
        help="Defaults and arithmetic of another system: golem, gopherllm or a plugin's.",
    ),
    setting("--min-tokens", type=int, help="Tokens to write before the answer may end."),
    setting(
        "--logit-bias", multiple=True, metavar="ID=X", help="Add X to the logit of token ID. Repeatable."
    ),
    setting("--seed", type=int, help="Seed of the random numbers; -1: a fresh one."),
)

_ENDING = (
    setting("--stop", multiple=True, metavar="TEXT", help="End the answer before TEXT. Repeatable."),
    setting("--timeout", type=float, metavar="SECONDS", help="Give up after so many seconds."),
    setting("--ignore-eos", is_flag=True, help="Never draw a token that ends the answer."),
    setting(
        "--schema",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="The answer is JSON that satisfies this JSON schema.",
    ),
    setting(
        "--grammar",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="The answer follows this grammar: GBNF (.gbnf) or Lark (.lark).",
    ),
    setting(
        "--logprobs",
        type=click.IntRange(0),
        metavar="N",
        help="With --json: log-probabilities of each token and the N likeliest.",
    ),
)

_KEYS = (
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "repeat_last_n",
    "frequency_penalty", "presence_penalty", "logit_bias", "seed", "stop", "timeout", "ignore_eos", "logprobs",
    "schema", "grammar",
    "top_n_sigma", "xtc_probability", "xtc_threshold", "min_keep", "dynatemp_range", "dynatemp_exp", "mirostat",
    "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay", "dry_multiplier", "dry_base",
    "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breaker", "samplers", "sampling_profile", "min_tokens",
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
        InvalidRequest: a timeout that is not positive, a malformed ``--logit-bias``, an unreadable schema or grammar.
    """
    taken = {key: options.pop(key) for key in _KEYS if key in options}
    timeout = taken.get("timeout")
    if timeout is not None and not timeout > 0:
        raise InvalidRequest(f"timeout is {timeout:g}; a positive number of seconds was expected", "timeout")
    taken["logit_bias"] = dict(map(_bias, taken["logit_bias"])) or None
    breakers = taken.pop("dry_sequence_breaker", ())
    if breakers:
        taken["dry_sequence_breakers"] = [text for text in breakers if text and text != "none"]
    if taken.get("schema") is not None:
        taken["schema"] = _text_of(taken["schema"])
    if taken.get("grammar") is not None:
        taken["grammar"] = _grammar(taken["grammar"])
    taken["stop"] = [text for text in taken.get("stop", ()) if text] or None
    return {key: value for key, value in taken.items() if value is not None and value is not False}


def resolved_options(options: dict[str, Any]) -> None:
    """Check options of generation under the library's names, or Ollama's, without a model.

    Raises:
        InvalidRequest: a value that is out of range, or a name that nobody knows.
    """
    from ggfw.request import resolve_params
    from ggfw.sampling import Params

    ours = {"num_predict", "num_ctx", "max_tokens", "stop", "timeout", "ignore_eos", "seed"}
    resolve_params(Params(), {key: value for key, value in options.items() if key not in ours})


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} cannot be read as text: {error}") from None


def _grammar(path: str) -> Any:
    """The grammar in a file: of the kind that the file's name says, else by the look of its text."""
    from ggfw.constraints import Grammar

    make = {".gbnf": Grammar.gbnf, ".lark": Grammar.lark}.get(Path(path).suffix.lower(), Grammar.detect)
    return make(_text_of(path))


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


stats_option = setting("--stats", is_flag=True, help="Write counts and speeds to stderr at the end.")

_CONVERSATION = (
    setting("--system", metavar="TEXT", help="System prompt; default: none."),
    setting(
        "--think/--no-think",
        default=None,
        help="Switch reasoning on or off, where the model can.",
    ),
    setting(
        "--reasoning-effort",
        metavar="WORD",
        help="none, minimal, low, medium, high, xhigh or max, where the model's template knows it.",
    ),
    setting("--reasoning-budget", type=int, metavar="N", help="Tokens of reasoning at most; -1: no limit."),
    setting(
        "--skills",
        multiple=True,
        is_flag=False,
        flag_value="",
        metavar="[DIR]",
        help="Folder of skills that the model may load (NAME/SKILL.md or NAME.md); without DIR: those of plugins. "
        "Repeatable.",
    ),
)
_CONVERSATION_KEYS = ("think", "reasoning_effort", "reasoning_budget", "skills")


def conversation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a verb with the options of a conversation: system prompt, reasoning, skills."""
    for option in reversed(_CONVERSATION):
        command = option(command)
    return command


def split_conversation_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take the conversation options out of a verb's options, as the library wants them; only those given.

    ``system`` stays. Files that are no skills are named on stderr.

    Raises:
        InvalidRequest: a folder of skills that cannot be read.
    """
    taken = {key: options.pop(key, None) for key in _CONVERSATION_KEYS}
    folders = taken.pop("skills")
    if folders:
        from ggfw import load_skills

        taken["skills"] = skills = load_skills(*filter(None, folders))
        for warning in skills.warnings:
            terminal.say(f"ggfw: {warning}")
    return {key: value for key, value in taken.items() if value is not None}


def read_tools(path: str) -> list[dict[str, Any]]:
    """The definitions in a file of tools: a JSON list, or an object with the list as ``tools``.

    Raises:
        InvalidRequest: it cannot be read, or is no such JSON.
    """
    import json

    text = _text_of(path)
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{path} is not valid JSON: {error}", "tools") from None
    if isinstance(found, dict) and "tools" in found:
        found = found["tools"]
    if not isinstance(found, list):
        raise InvalidRequest(f"{path} holds no list of tools; OpenAI's form was expected", "tools")
    return found
