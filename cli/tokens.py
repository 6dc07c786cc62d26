"""``ggfw tokenize MODEL TEXT`` and ``ggfw detokenize MODEL IDS``: the file's vocabulary, without its weights."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from ggfw.cli import terminal
from ggfw.cli.loading import model_argument, models_dir_option
from ggfw.cli.settings import setting, verb
from ggfw.errors import InvalidRequest

if TYPE_CHECKING:
    from ggfw.tokenizer import Tokenizer

__all__ = ["detokenize_verb", "parse_ids", "tokenize_verb"]


def _tokenizer(model: str, models_dir: str | None) -> Tokenizer:
    from ggfw.cli.resolve import find_model
    from ggfw.gguf import GGUF
    from ggfw.tokenizer import Tokenizer

    with GGUF.open(find_model(model, models_dir)) as gguf:
        return Tokenizer.from_metadata(gguf.metadata)


def parse_ids(text: str) -> list[int]:
    """Return the token ids in ``text``: numbers separated by commas or white space, brackets allowed.

    Raises:
        InvalidRequest: something in it is no number.
    """
    words = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    for word in words:
        if not (word.isascii() and word.isdigit()):
            raise InvalidRequest(f"{word!r} is no token id; expected numbers such as 1,2,3", "ids")
    return [int(word) for word in words]


@verb("tokenize")
@model_argument()
@click.argument("text")
@setting("--no-special", is_flag=True, help="Read the names of control tokens in TEXT as plain text.")
@setting(
    "--bos/--no-bos", default=True, help="Add the tokens that the file wants around a text; default: yes."
)
@setting("--json", "as_json", is_flag=True, help="Print a JSON list.")
@models_dir_option
def tokenize_verb(
    model: str, text: str, no_special: bool, bos: bool, as_json: bool, models_dir: str | None
) -> None:
    """Print the token ids of TEXT ("-": of stdin, to the last byte)."""
    data = sys.stdin.buffer.read() if text == "-" else os.fsencode(text)
    ids = _tokenizer(model, models_dir).encode(data, add_special=bos, parse_special=not no_special)
    if as_json:
        import json

        print(json.dumps(ids))
    else:
        print(",".join(map(str, ids)))


@verb("detokenize")
@model_argument()
@click.argument("ids", nargs=-1, required=True)
@setting("--special", is_flag=True, help="Print control tokens too.")
@setting("--json", "as_json", is_flag=True, help="Print a JSON string.")
@models_dir_option
def detokenize_verb(
    model: str, ids: tuple[str, ...], special: bool, as_json: bool, models_dir: str | None
) -> None:
    """Print the text of token IDS, such as 1,2,3 ("-": read them from stdin)."""
    numbers = parse_ids(sys.stdin.read() if ids == ("-",) else " ".join(ids))
    data = _tokenizer(model, models_dir).detokenize_bytes(numbers, special=special)
    if as_json:
        import json

        print(json.dumps(data.decode("utf-8", "replace"), ensure_ascii=False))
        return
    terminal.write_bytes(data)
    if not data.endswith(b"\n"):
        terminal.write("\n")
