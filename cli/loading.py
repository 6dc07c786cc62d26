"""The options of every verb that loads a model, and the loading itself."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggfw.cli.settings import KV_TYPE_NAMES, SPEC_NAMES, Choice, setting
from ggfw.errors import InvalidRequest

if TYPE_CHECKING:
    from ggfw import Model

__all__ = [
    "COUNT", "default_name", "is_offline", "load_model", "load_options", "loading_given", "model_argument",
    "models_dir_option", "split_load_options",
]  # fmt: skip


class Count(click.ParamType):
    """A positive number, also with k or K: ``32k`` is 32,000 and ``32K`` is 32,768."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        text = str(value)
        factor = {"k": 1000, "K": 1024}.get(text[-1:], 1)
        digits = text[:-1] if factor > 1 else text
        if not digits.isdigit() or int(digits) < 1:
            self.fail(f"{text!r} is not a positive number (such as 4096 or 4K)", param, ctx)
        return int(digits) * factor


COUNT = Count()


def model_argument(name: str = "model", **kwargs: Any) -> Any:
    """Decorate a verb with an argument that names models, which shells complete; takes what click.argument takes."""
    return click.argument(name, shell_complete=_complete, **kwargs)


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
    from ggfw.cli.completion import complete_model

    return complete_model(ctx, param, incomplete)


_MODELS_DIR = setting(
    "--models-dir",
    metavar="DIR",
    help="Folder of models; default: LM Studio's, Ollama's and ggfw's own.",
)


def _note_offline(context: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        context.meta[OFFLINE] = True


#: Key of the context's ``meta`` that says that nothing may be fetched.
OFFLINE = "ggfw.offline"
_OFFLINE = setting(
    "--offline",
    is_flag=True,
    expose_value=False,
    callback=_note_offline,
    help="Fetch nothing; use what is there.",
)


def _note_default(context: click.Context, param: click.Parameter, value: str | None) -> None:
    if value:
        context.meta[DEFAULT_MODEL] = value


#: Key of the context's ``meta`` for the model that is meant where none is named.
DEFAULT_MODEL = "ggfw.default_model"
_DEFAULT_MODEL = setting(
    "--default-model",
    metavar="MODEL",
    expose_value=False,
    callback=_note_default,
    help="What is meant where no MODEL is named; default: SmolLM2-135M-Instruct. For the configuration file.",
)


def default_name() -> str | None:
    """The user's own default model, if any."""
    context = click.get_current_context(silent=True)
    return context.meta.get(DEFAULT_MODEL) if context is not None else None


def models_dir_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a verb with the options that say where models come from."""
    return _MODELS_DIR(_OFFLINE(command))  # type: ignore[no-any-return]


def is_offline() -> bool:
    """Whether nothing may be fetched: ``--offline``, or the hub's own switch ``HF_HUB_OFFLINE``."""
    context = click.get_current_context(silent=True)
    return bool(context is not None and context.meta.get(OFFLINE)) or os.environ.get(
        "HF_HUB_OFFLINE", ""
    ).upper() in ("1", "ON", "YES", "TRUE")


_OPTIONS = (
    setting("--threads", type=COUNT, help="Threads; default: the usable physical cores."),
    setting(
        "--ctx",
        type=COUNT,
        help="Positions of context per sequence; default: what the model was trained for.",
    ),
    setting("--ubatch", type=COUNT, help="Rows of the largest step; default: 512."),
    setting(
        "--kv-type",
        type=Choice(KV_TYPE_NAMES),
        help="Type of the attention cache; default: f16.",
    ),
    setting(
        "--backend",
        metavar="NAME",
        help="Kernel backend, or reference (NumPy, slow); default: the best here.",
    ),
    setting(
        "--rope-scaling",
        type=Choice(["none", "linear", "yarn", "longrope"]),
        help="Scaling of rotary positions instead of the file's; none: off.",
    ),
    setting(
        "--rope-base",
        type=click.FloatRange(min=1.0),
        help="Base of the rotary frequencies instead of the file's.",
    ),
    setting(
        "--spec",
        type=Choice(SPEC_NAMES),
        help="Guess tokens and verify several at once, where it pays: ngram looks them up in the text, draft asks the "
        "draft model; default: auto. Answers are the same.",
    ),
    setting(
        "--draft",
        metavar="MODEL",
        help="A small model of the same vocabulary that guesses for this one.",
    ),
    setting(
        "--activations",
        type=Choice(["int16", "int8", "f32"]),
        help="What matrix products take their inputs in; int8 is fastest, f32 exact. Default: int16.",
    ),
    setting(
        "--deterministic",
        is_flag=True,
        default=None,
        help="The same bits however a prompt was cut, whoever runs beside it and whatever was said before: "
        "conversations that come back as text are not read in the tokens they were drawn in. Slower on prompts.",
    ),
    setting(
        "--prefix-cache-mb",
        type=click.IntRange(min=0),
        metavar="MB",
        help="MiB for beginnings of prompts that need no second evaluation; 0: off; default: by the cache.",
    ),
    setting(
        "--mmap/--no-mmap",
        default=True,
        help="Map packed weights that an earlier start kept on disk, or pack them into memory; default: map.",
    ),
    setting(
        "--mlock",
        is_flag=True,
        expose_value=False,
        callback=lambda context, param, value: lock_memory() if value else None,
        help="Keep everything in RAM, never in swap; needs the right to lock memory (ulimit -l unlimited).",
    ),
    setting(
        "--packed-cache-mb",
        type=click.IntRange(min=0),
        default=2048,
        show_default=True,
        metavar="MB",
        help="MiB on disk for weights in the layout that the kernels read, which make later starts faster; 0: none.",
    ),
    setting(
        "--repack/--no-repack",
        default=None,
        help="Pack weights into the layout that is read fastest, or run straight from the mapped file, for files "
        "larger than memory (slower); default: pack where memory is free for it.",
    ),
    setting(
        "--prefault/--no-prefault",
        default=True,
        help="Read ahead, in the background, what stays mapped of the file; default: do.",
    ),
    _DEFAULT_MODEL,
    models_dir_option,
)

_KEYS = (
    "threads", "ctx", "ubatch", "kv_type", "backend", "rope_scaling", "rope_base", "spec", "activations",
    "deterministic", "prefix_cache_mb", "repack", "prefault",
)  # fmt: skip


def load_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a verb with the options that choose and load a model."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def split_load_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take the loading options out of a verb's options; those not given are left to the library."""
    taken = {key: options.pop(key) for key in _KEYS if key in options}
    packed_cache_mb = options.pop("packed_cache_mb", 0) if options.pop("mmap", True) else 0
    if packed_cache_mb:
        from ggfw.cli.folders import packed_folder
        from ggfw.packed_cache import PackedCache

        taken["packed_cache"] = PackedCache(packed_folder(), packed_cache_mb)
    draft = options.pop("draft", None)
    if draft is not None:
        from ggfw.cli.resolve import find_model

        taken["draft"] = find_model(draft, options.get("models_dir"))
    return {key: value for key, value in taken.items() if value is not None}


def lock_memory() -> None:
    """Lock all pages of this process in RAM as they come to be used.

    Raises:
        InvalidRequest: the system has no such thing, or does not allow it.
    """
    import ctypes
    import sys

    if not sys.platform.startswith("linux"):
        raise InvalidRequest("--mlock is for Linux; leave it out", "mlock")
    current, future, on_fault = 1, 2, 4  # MCL_*, the same on x86-64 and arm64
    libc = ctypes.CDLL(None, use_errno=True)
    import resource

    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    # With a limit the call may succeed and a later allocation fail for it, in the middle of something.
    allowed = limit == resource.RLIM_INFINITY or os.geteuid() == 0
    if not allowed or libc.mlockall(current | future | on_fault):
        raise InvalidRequest(
            "this process may not lock its memory; raise the limit (ulimit -l unlimited, LimitMEMLOCK=infinity in a "
            "unit of systemd) or leave --mlock out",
            "mlock",
        )


def loading_given(context: click.Context) -> str:
    """The first option of loading that the user typed, as ``--name``; empty when there is none."""
    from click.core import ParameterSource

    for key in (*_KEYS, "mmap", "packed_cache_mb", "draft", "models_dir"):
        if key in context.params and context.get_parameter_source(key) is ParameterSource.COMMANDLINE:
            return f"--{key.replace('_', '-')}"
    return ""


def load_model(path: Path, options: dict[str, Any], **more: Any) -> Model:
    """Load a file with the options of :func:`split_load_options`, showing that it takes time where it does."""
    import ggfw
    from ggfw.cli.progress import waiting

    with waiting(f"loading {path.name}"):
        model = ggfw.load(path, **options, **more)
    gc.freeze()  # main() has switched collection off for the start; what stands now stays
    gc.enable()
    return model
