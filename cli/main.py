"""``ggfw``: the group of all verbs, loaded one at a time, and the one place where errors become exit codes.

Exit codes: 0 done, 1 failed (one line on stderr, never a traceback), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from ggfw.cli import terminal
from ggfw.errors import GgfwError

#: Verb -> (module of this package, what ``--help`` says). The module has it as ``VERB_verb``; so ``ggfw --help``
#: imports none of them.
VERBS: dict[str, tuple[str, str]] = {
    "run": ("run", "Let a model answer one prompt."),
    "chat": ("chat", "Talk with a model."),
    "serve": ("serve", "Serve a model over HTTP."),
    "pull": ("pull", "Fetch models."),
    "list": ("listing", "List the models in the model folders."),
    "rm": ("store", "Remove models."),
    "cp": ("store", "Give a model a second name."),
    "create": ("create", "Make a model from another one with a Modelfile."),
    "ps": ("running", "List the models that a server has loaded."),
    "stop": ("running", "Let a server unload models."),
    "show": ("show", "Show what a model file says about itself."),
    "tokenize": ("tokens", "Print the token ids of a text."),
    "detokenize": ("tokens", "Print the text of token ids."),
    "logits": ("logits", "Write logits, greedy tokens and hidden states of given tokens to a file."),
    "embed": ("embed", "Print embeddings of texts."),
    "bench": ("bench", "Measure prompt and decode speed."),
    "perplexity": ("perplexity", "Measure how well a model predicts a text."),
    "quantize": ("quantize", "Write a copy of a model with fewer bits."),
    "verify": ("verify", "Check native execution against the exact reference, step by step."),
    "trace": ("trace", "Write every named tensor of one run to a file."),
    "plugins": ("plugins", "List, show and check plugins."),
    "doctor": ("doctor", "Report on this machine and this installation."),
    "config": ("config", "Show the settings that are in force."),
    "completion": ("completion", "Print a script that completes commands in a shell."),
}


#: What other programs call our verbs; none of them is a verb here, but the error names ours.
OTHERS = {
    "analyze": "show", "cli": "chat", "copy": "cp", "delete": "rm", "download": "pull", "embedding": "embed",
    "generate": "run", "get": "pull", "help": "--help", "import": "pull", "info": "show", "inspect": "show",
    "install": "pull", "load": "run", "ls": "list", "models": "list", "perf": "bench", "prompt": "run",
    "quant": "quantize", "remove": "rm", "repl": "chat", "server": "serve", "start": "serve", "unload": "stop",
    "version": "--version",
}  # fmt: skip


class VerbGroup(click.Group):
    """The verbs of :data:`VERBS`, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb; None when there is none of that name."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = getattr(import_module(f"ggfw.cli.{VERBS[cmd_name][0]}"), f"{cmd_name}_verb")
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """As click does it, but an unknown verb gets the near ones named."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from difflib import get_close_matches  # here, because only mistakes need it

            word = args[0].lower()
            near = [OTHERS[word]] if word in OTHERS else get_close_matches(word, VERBS, n=2)
            hint = f"; did you mean {' or '.join(near)}?" if near else f"; known: {', '.join(VERBS)}"
            raise click.UsageError(f"there is no verb {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs from the table."""
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])


def _version() -> str:
    from importlib.metadata import version

    return version("ggfw")


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"ggfw {_version()}")
        ctx.exit()


@click.group(
    cls=VerbGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every long option is also an environment variable (--top-k: GGFW_TOP_K) and a key of the "
    "configuration file (top-k); an option wins over a variable, a variable over the file, the file over "
    "what a model file recommends.",
)
@click.option(
    "--config",
    metavar="FILE",
    envvar="GGFW_CONFIG",
    help="Configuration file in TOML, also behind the verb; default: config.toml in the user's folder for ggfw.",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show it."
)
@click.pass_context
def cli(ctx: click.Context, config: str | None) -> None:
    """Run GGUF language models on ordinary CPUs."""
    ctx.obj = {"config": config}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; what the ``ggfw`` script starts (:func:`ggfw.cli.start`).

    Args:
        argv: arguments without the program's name; None = those of the process.
    """
    terminal.prepare()
    gc.disable()  # start-up makes objects that stay: collecting among them takes a tenth of the time to the first token
    try:
        code = cli.main(args=None if argv is None else list(argv), prog_name="ggfw", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.Abort:  # click has ended the line on which ^C was shown
        return 130
    except KeyboardInterrupt:
        terminal.end_line()
        return 130
    except click.UsageError as exc:
        if type(exc).__name__ == "NoArgsIsHelpError":  # since click 8.2: its message is the whole help
            sys.stdout.flush()
            click.echo(exc.format_message(), err=True)
            return 2
        verb = exc.ctx.command_path if exc.ctx is not None else "ggfw"
        terminal.error(f"{_sentence(exc.format_message())} (see {verb} --help)")
        return 2
    except click.ClickException as exc:
        terminal.error(exc.format_message())
        return exc.exit_code
    except BrokenPipeError:  # the reader has gone (`| head`)
        _drop_output()
        return 1
    except Exception as exc:
        if os.environ.get("GGFW_TRACEBACK"):
            raise
        terminal.error(_explain(exc))
        if isinstance(exc, OSError):
            _drop_output()
        return 1
    finally:
        gc.enable()


def _drop_output() -> None:
    """Let stdout lead nowhere if it takes nothing: what Python still holds would be an error again when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _sentence(text: str) -> str:
    """click's messages without the full stop that would stand before our hint."""
    return text.rstrip().removesuffix(".")


def _explain(exc: Exception) -> str:
    """One sentence for an exception."""
    if isinstance(exc, GgfwError):
        return str(exc)
    if isinstance(exc, MemoryError):
        return "memory is short; choose a smaller model or a smaller --ctx"
    if isinstance(exc, OSError) and exc.filename is not None and exc.strerror:
        return f"{os.fsdecode(exc.filename)}: {exc.strerror}"
    if isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
        return f"the output cannot be written: {exc.strerror}"
    return (
        f"unexpected {type(exc).__name__}: {exc}; this is a defect in ggfw or in a plugin "
        "(GGFW_TRACEBACK=1 shows where)"
    )


if __name__ == "__main__":
    sys.exit(main())
