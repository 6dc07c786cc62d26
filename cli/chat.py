"""``ggfw chat [MODEL]``: a conversation in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggfw.cli import terminal
from ggfw.cli.client import find_server, local_option
from ggfw.cli.conversation import Conversation
from ggfw.cli.derived import find_preset, set_template, with_loading, with_preset
from ggfw.cli.generating import (
    check_tokens,
    conversation_options,
    generation_options,
    split_generation_options,
    stats_option,
)
from ggfw.cli.loading import default_name, load_options, model_argument, split_load_options
from ggfw.cli.profiling import profile_option, profiling
from ggfw.cli.settings import setting, verb
from ggfw.errors import InvalidRequest

if TYPE_CHECKING:
    from ggfw import Model
    from ggfw.cli.remote import RemoteModel

__all__ = ["chat", "chat_verb"]


@verb("chat")
@model_argument(required=False)
@conversation_options
@setting(
    "--tools",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Tools that the model may call, as a JSON list in OpenAI's form; you type the results.",
)
@generation_options
@stats_option
@setting("--hide-thinking", is_flag=True, help="Do not show the reasoning.")
@setting(
    "--markdown/--no-markdown",
    default=True,
    help="Render answers on a terminal, or show them as they are; default: render.",
)
@profile_option
@setting("--no-history", is_flag=True, help="Do not remember what was typed and said for the next time.")
@setting("--continue", "-c", "resume", is_flag=True, help="Go on with the last conversation.")
@local_option
@load_options
def chat_verb(model: str | None, models_dir: str | None, **options: Any) -> int:
    """Talk with MODEL; without it, choose one of the models that are there. /help lists the commands."""
    server = find_server(options.pop("local") or bool(options["profile"]))  # what is profiled runs here
    if server is None:
        return chat(model, models_dir, options)
    from ggfw.cli.remote import remote_model

    return chat(model, models_dir, options, remote_model(model, click.get_current_context(), server))


def chat(
    name: str | None, models_dir: str | None, options: dict[str, Any], remote: RemoteModel | None = None
) -> int:
    """Load a model and talk until the user leaves; returns the exit code.

    Args:
        name: MODEL as the user wrote it, or None.
        models_dir: the folder that the user named, if any.
        options: of the verb, by name.
        remote: the model of a server that answers in place of a loaded one.
    """
    loading, generation = split_load_options(options), split_generation_options(options)
    if remote is not None:
        from ggfw.cli.remote import RemoteModel

        server = remote.server
        return _talk(
            Conversation(
                remote,
                options,
                generation,
                lambda other: RemoteModel(server, server.knows(other) or other),
                lambda: [str(model["name"]).removesuffix(":latest") for model in server.models()],
            ),
            options,
        )
    from ggfw.cli.loading import load_model
    from ggfw.cli.resolve import find_model

    name = name or default_name()
    path, preset = find_preset(name, models_dir)
    path = path or _model_path(name, models_dir)
    options["system"], generation = with_preset(preset, options["system"], generation)
    loaded: list[Model] = [load_model(path, with_loading(preset, loading))]

    def load(other: str) -> Model:
        fresh = load_model(find_model(other, models_dir, ask=True), loading)
        loaded.pop().close()
        loaded.append(fresh)
        return fresh

    try:
        set_template(loaded[0], preset)
        check_tokens(generation, loaded[0].loaded.n_vocab)
        talk = Conversation(loaded[0], options, generation, load, lambda: _names(models_dir))
        talk.messages = list(preset.get("messages", []))
        with profiling(options.get("profile"), loaded[0]):
            return _talk(talk, options)
    finally:
        while loaded:
            loaded.pop().close()


def _talk(talk: Conversation, options: dict[str, Any]) -> int:
    from ggfw.cli.commands import NAMES
    from ggfw.cli.lines import Lines

    remember = not options.get("no_history")
    if options.get("resume"):
        _resume(talk)
    try:
        with Lines(remember, NAMES, talk.mark) as lines:
            if terminal.interactive():
                terminal.say(f"{talk.model.name} (/help lists the commands)")
            for line in lines:
                if not talk.take(line):
                    break
    finally:  # whatever ended it
        if remember and terminal.interactive() and talk.messages:
            _keep(talk)
    return 0


def _names(models_dir: str | None) -> list[str]:
    """Models in the folders that can run here."""
    from ggfw.cli.folders import all_models

    return [entry.id for entry in all_models(models_dir) if entry.state == "ok"]


def _model_path(name: str | None, models_dir: str | None) -> Path:
    """The file to load; without a name, on a terminal, the user picks when there are several models."""
    from ggfw.cli.resolve import find_model, pick

    if name is None and terminal.interactive():
        from ggfw.cli.folders import all_models

        usable = [entry for entry in all_models(models_dir) if entry.state == "ok"]
        if usable:
            return Path(usable[0].path if len(usable) == 1 else pick(usable).path)
    return find_model(name, models_dir, ask=True)


def _last_path() -> Path:
    from ggfw.cli.lines import user_folder

    return user_folder() / "last_chat.json"


def _resume(talk: Conversation) -> None:
    from ggfw.cli.commands import read_conversation

    path = _last_path()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        raise InvalidRequest("there is no last conversation to go on with", "continue") from None
    system = talk.system
    read_conversation(talk, text, str(path))
    talk.system = system or talk.system
    terminal.say(f"ggfw: going on after {len(talk.messages)} messages")


def _keep(talk: Conversation) -> None:
    """Write the conversation for --continue; only its owner may read it."""
    from ggfw.cli.commands import write_conversation

    path = _last_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        write_conversation(talk, path)
    except OSError as exc:
        print(f"ggfw: the conversation was not kept: {exc}", file=sys.stderr)
