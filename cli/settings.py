"""Options that are also environment variables and keys of the configuration file, in this order of precedence.

``--top-k 5`` is also ``GGFW_TOP_K=5`` and, in the file, ``top-k = 5``: at the top for every verb that has the option,
or in a table named for one verb. A key that no verb knows is an error, so that a misspelt one is not silently lost.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ggfw.errors import InvalidRequest

__all__ = [
    "KV_TYPE_NAMES", "SPEC_NAMES", "Choice", "Setting", "Verb", "config_path", "read_config", "setting", "verb",
]  # fmt: skip

#: Types of the attention cache: those of ``ggfw.execute.kv_types``, which is not imported just to print help.
KV_TYPE_NAMES = ("f32", "f16", "bf16", "q8_0", "q4_0")
#: Ways to guess tokens: ``ggfw.speculation.MODES``.
SPEC_NAMES = ("auto", "ngram", "draft", "off")


if TYPE_CHECKING:
    _Choice = click.Choice[str]
else:  # click 8.1's is not generic
    _Choice = click.Choice


class Choice(_Choice):
    """One of some words; what is none of them gets the near ones named."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word.

        Raises:
            click.BadParameter: it is none of them; with a suggestion.
        """
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as exc:
            hint = self._hint(str(value).lower().replace("-", "_"))
            raise click.BadParameter(exc.message.rstrip(".") + hint, ctx, param) from None

    def _hint(self, word: str) -> str:
        from difflib import get_close_matches  # here, because only mistakes need it

        choices = {str(choice).lower(): str(choice) for choice in self.choices}
        near = get_close_matches(word, choices, n=2)
        # Parts of a name: quant is quant_format.
        near += [
            name for name in choices if name not in near and len(word) > 2 and (word in name or name in word)
        ]
        return f"; did you mean {' or '.join(choices[name] for name in near[:2])}?" if near else ""


#: What a variable of ``--no-NAME`` may say when it means nothing.
_OFF = ("", "0", "false", "off", "no", "f", "n")


class Setting(click.Option):
    """An option that is also ``GGFW_NAME`` for each of its long names, and a key of the configuration file."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("show_default", False)
        super().__init__(*args, **kwargs)
        self.keys = [name[2:] for name in self.opts if name.startswith("--")]
        self.envvar = [f"GGFW_{key.upper().replace('-', '_')}" for key in self.keys]
        #: Of ``--mmap/--no-mmap``: ``no-mmap``, which is a key too, and its variable.
        self.no_keys = [name[2:] for name in self.secondary_opts if name.startswith("--")]
        self.no_envvar = [f"GGFW_{key.upper().replace('-', '_')}" for key in self.no_keys]

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the variable's text; ``GGFW_NO_MMAP=1`` is ``GGFW_MMAP=0``."""
        found = super().resolve_envvar_value(ctx)
        if found is None and any(os.environ.get(name, "").lower() not in _OFF for name in self.no_envvar):
            return "0"
        return found

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """Return the variable's value; for an option that may be repeated, the whole value is one of them."""
        value = self.resolve_envvar_value(ctx)
        return (value,) if value is not None and self.multiple else super().value_from_envvar(ctx)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Name what the bad value came from: option, variable or file."""
        source = ctx.get_parameter_source(self.name) if ctx is not None and self.name else None
        if ctx is not None and source is ParameterSource.ENVIRONMENT:
            return next((name for name in self.envvar or () if os.environ.get(name)), self.opts[0])
        if source is ParameterSource.DEFAULT_MAP:
            return f"{self.keys[0]} in the configuration file"
        return super().get_error_hint(ctx)


def setting(*names: str, **kwargs: Any) -> Any:
    """Decorate a verb with a :class:`Setting`; arguments as for ``click.option``."""
    return click.option(*names, cls=Setting, **kwargs)


class Verb(click.Command):
    """A command whose options take defaults from the configuration file.

    Args:
        makes_config: whether it writes that file, so that a chosen one need not be there yet.
    """

    def __init__(self, *args: Any, makes_config: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.makes_config = makes_config

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the configuration file (if there is one) before the options are looked at."""
        root = parent.find_root() if parent is not None else None
        named, args = _named_config(args)
        if named is not None and root is not None:
            root.obj = {**(root.obj or {}), "config": named}
        chosen = (root.obj or {}).get("config") if root is not None else named
        config = read_config(chosen, may_be_missing=self.makes_config)
        if not config:
            return super().make_context(info_name, args, parent=parent, **extra)
        extra["default_map"] = self._defaults(config, info_name or "")
        context = super().make_context(info_name, args, parent=parent, **extra)
        _leave_out_plugins(config, config_path(chosen), context)
        return context

    def _defaults(self, config: dict[str, Any], verb_name: str) -> dict[str, Any]:
        own = config.get(verb_name)
        found: dict[str, Any] = {}
        for values in (config, own if isinstance(own, dict) else {}):
            for param in self.params:
                if not isinstance(param, Setting) or param.name is None:
                    continue
                for key in (*param.keys, *param.no_keys):
                    for spelling in (key, key.replace("-", "_")):
                        if spelling in values:
                            value = values[spelling]
                            if key in param.no_keys and isinstance(value, bool):
                                value = not value
                            several = param.multiple and not isinstance(value, list)
                            found[param.name] = [value] if several else value
        return found


def _leave_out_plugins(config: dict[str, Any], path: Path, context: click.Context) -> None:
    """Hand ``disable-plugins`` of the file to the registry, as its variable, while a verb runs.

    Processes that the verb starts get it too. A variable that is set wins over the file.
    """
    from ggfw.cli.plugin_switches import VARIABLE, disabled_in

    names = disabled_in(config, path)
    if not names or VARIABLE in os.environ:
        return
    os.environ[VARIABLE] = ",".join(names)
    context.meta["ggfw.from_file"] = {VARIABLE}
    context.call_on_close(lambda: os.environ.pop(VARIABLE, None))


def _named_config(args: list[str]) -> tuple[str | None, list[str]]:
    """The file of ``--config FILE`` behind a verb, and the other arguments; None where there is none.

    Raises:
        click.UsageError: no file follows.
    """
    end = args.index("--") if "--" in args else len(args)
    for at, arg in enumerate(args[:end]):
        if arg.startswith("--config="):
            return arg.removeprefix("--config="), [*args[:at], *args[at + 1 :]]
        if arg == "--config":
            if at + 1 >= end:
                raise click.UsageError("--config needs the path of a file")
            return args[at + 1], [*args[:at], *args[at + 2 :]]
    return None, args


def verb(name: str, **kwargs: Any) -> Any:
    """Decorate a function as the :class:`Verb` ``name``."""
    return click.command(name, cls=Verb, **kwargs)


def config_path(chosen: str | None = None) -> Path:
    """Return the configuration file's path: the chosen one, else ``config.toml`` in the user's folder for ggfw."""
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_config_path

    return user_config_path("ggfw", appauthor=False) / "config.toml"


def read_config(chosen: str | None = None, *, may_be_missing: bool = False) -> dict[str, Any]:
    """Read and check the configuration file; empty when there is none and none was asked for.

    The user's own file that cannot be looked at is left out with a line on stderr, for nobody asked for it.

    Args:
        chosen: path that the user gave; None: the user's own file.
        may_be_missing: whether a chosen file that is not there is empty as well.

    Raises:
        InvalidRequest: a chosen file is missing or cannot be read, or the file is no TOML, or has a key that no verb
            knows.
    """
    path = config_path(chosen)
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors of Windows begin files with a byte order mark
    except FileNotFoundError:
        if chosen and not may_be_missing:
            raise InvalidRequest(f"there is no configuration file {path}", "config") from None
        return {}
    except (OSError, UnicodeDecodeError) as exc:
        if isinstance(exc, OSError) and not chosen:
            if not isinstance(
                exc, NotADirectoryError
            ):  # a folder on the way that is none says that there is no file
                _left_out(path, exc.strerror or str(exc))
            return {}
        why = exc.strerror if isinstance(exc, OSError) else exc
        raise InvalidRequest(f"the configuration file {path} cannot be read: {why}", "config") from exc
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # type: ignore[import-not-found,no-redef]
    try:
        config: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise InvalidRequest(f"the configuration file {path} is not TOML: {exc}", "config") from exc
    if config:
        _check_keys(config, path)
    return config


@cache
def _left_out(path: Path, why: str) -> None:
    """Say, once, that a file nobody asked for cannot be read."""
    click.echo(f"ggfw: the configuration file {path} cannot be read ({why}) and is left out", err=True)


def _check_keys(config: dict[str, Any], path: Path) -> None:
    by_verb = _known_keys()
    every = {"disable-plugins"}.union(*by_verb.values())
    for key, value in config.items():
        if isinstance(value, dict):
            if key not in by_verb:
                raise InvalidRequest(_unknown("table", key, by_verb, path), "config")
            for inner in value:
                if inner.replace("_", "-") not in by_verb[key]:
                    raise InvalidRequest(_unknown(f"key of [{key}]", inner, by_verb[key], path), "config")
        elif key.replace("_", "-") not in every:
            raise InvalidRequest(_unknown("key", key, every, path), "config")


def _unknown(what: str, name: str, known: Any, path: Path) -> str:
    from difflib import get_close_matches  # here, because only mistakes need it

    near = get_close_matches(name.replace("_", "-"), known, n=2)
    hint = (
        f"; did you mean {' or '.join(near)}?" if near else "; remove it (ggfw VERB --help lists the options)"
    )
    return f"unknown {what} {name!r} in the configuration file {path}{hint}"


def _known_keys() -> dict[str, set[str]]:
    """Long option names by verb. Imports all verbs, which is cheap: their modules import nothing heavy."""
    from ggfw.cli.main import VERBS, cli

    def keys(command: click.Command) -> set[str]:
        found = {
            key
            for param in command.params
            if isinstance(param, Setting)
            for key in (*param.keys, *param.no_keys)
        }
        for child in getattr(command, "commands", {}).values():
            found |= keys(child)
        return found

    context = click.Context(cli)
    return {name: keys(command) for name in VERBS if (command := cli.get_command(context, name)) is not None}
