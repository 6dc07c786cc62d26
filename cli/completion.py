"""``ggfw completion bash|zsh|fish``: completes verbs, options and names of models.

The scripts ask ``ggfw`` itself through click. Bash cuts words at colons (``llama3.2:1b``), so its script joins them
again before it asks, and takes what stands before the last colon off the answers.
"""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from ggfw.cli.settings import Choice, verb

__all__ = ["complete_model", "completion_verb", "model_names"]

BASH = """\
# ggfw completion for bash; eval "$(ggfw completion bash)" in ~/.bashrc
_ggfw_completion() {
    local line="${COMP_LINE:0:$COMP_POINT}" word type value reply
    local -a words
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    word="${words[${#words[@]} - 1]}"
    reply=$(COMP_WORDS="$(printf '%q ' "${words[@]}")" COMP_CWORD=$((${#words[@]} - 1)) \\
        _GGFW_COMPLETE=bash_complete ggfw)
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            dir | file) compopt -o default 2>/dev/null; COMPREPLY=(); return ;;
            plain)
                # Bash replaces only what follows the last colon.
                [[ $word == *:* && $COMP_WORDBREAKS == *:* ]] && value="${value#"${word%:*}":}"
                COMPREPLY+=("$value") ;;
        esac
    done <<<"$reply"
}
complete -o nosort -F _ggfw_completion ggfw
"""


@verb("completion")
@click.argument("shell", type=Choice(["bash", "zsh", "fish"]), metavar="SHELL")
def completion_verb(shell: str) -> None:
    """Print a script for SHELL that completes verbs, options and names of models.

    bash: eval "$(ggfw completion bash)" in ~/.bashrc; zsh: eval "$(ggfw completion zsh)" in ~/.zshrc; fish: ggfw
    completion fish > ~/.config/fish/completions/ggfw.fish
    """
    if shell == "bash":
        print(BASH, end="")
        return
    from click.shell_completion import get_completion_class

    from ggfw.cli.main import cli

    made = get_completion_class(shell)
    assert made is not None  # click knows these shells
    source = made(cli, {}, "ggfw", "_GGFW_COMPLETE").source()
    print(source)


def model_names(models_dir: str | None = None) -> list[str]:
    """Return names that MODEL may be: of the folders, of derived models, and of the catalogue."""
    from ggfw.catalogue import CATALOGUE
    from ggfw.cli.derived import all_presets
    from ggfw.cli.folders import all_models
    from ggfw.errors import GgfwError

    names = [entry.id for entry in all_models(models_dir) if entry.state == "ok"]
    try:
        names += [preset["name"] for preset in all_presets(models_dir)]
    except GgfwError:  # said by the verbs; a key press is not the place
        pass
    return sorted({*names, *(entry.name for entry in CATALOGUE)})


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of models that begin with what is typed; a path is left to the shell."""
    if incomplete.startswith((".", "/", "~")):
        return [CompletionItem(incomplete, type="file")]
    wanted = incomplete.lower()
    names = [name for name in model_names(ctx.params.get("models_dir")) if name.lower().startswith(wanted)]
    return [CompletionItem(name) for name in names] or [CompletionItem(incomplete, type="file")]
