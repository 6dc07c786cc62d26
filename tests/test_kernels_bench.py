"""``ggfw bench``: what would be counted wrongly is refused, and the sentence says what to change."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tiny_models import write_llama

if TYPE_CHECKING:
    from cli_support import Cli

pytest_plugins = ["cli_support"]

MODELS = Path(__file__).parent / "data" / "models"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("bench") / "tiny.gguf")


@pytest.mark.parametrize("flags", [[], ["--raw"]])
@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (
            ["--ubatch", "4", "--parallel", "5"],
            r"5 sequences at once need steps of 5 rows, not 4; .*--ubatch",
        ),
        (
            ["--ctx", "64", "-p", "50", "-n", "20"],
            r"need 70 positions each, and the context holds 64; give at least 70",
        ),
        (["--ctx", "64", "-p", "80"], r"need 84 positions each, and the context holds 64"),
    ],
)
def test_what_would_be_counted_wrongly_is_refused(
    cli: Cli, model: Path, flags: list[str], args: list[str], problem: str
) -> None:
    said = cli("bench", model, "-p", "10", "-n", "4", "--repeat", "1", *args, *flags)
    assert said.code == 1 and re.search(problem, said.err), said.err


def test_positions_that_are_drawn_while_others_are_read_count(cli: Cli, model: Path) -> None:
    """The first sequences would end at the context's border before the last one had its tokens."""
    args = ["bench", model, "-p", "50", "-n", "10", "--parallel", "8", "--ubatch", "16", "--repeat", "1"]
    said = cli(*args, "--ctx", "64")
    assert said.code == 1 and "while the last prompts are read" in said.err
    enough = said.err.split("give at least ")[1].split()[0].rstrip(",;")
    assert cli(*args, "--ctx", enough).code == 0


def test_more_sequences_than_a_queue_holds(cli: Cli, model: Path) -> None:
    said = cli("bench", model, "-p", "3", "-n", "3", "--parallel", "100", "--repeat", "1", "--json")
    (row,) = json.loads(said.out)
    assert row["samples"][0]["generated_tokens"] == 300


@pytest.mark.parametrize("flags", [[], ["--raw"]])
def test_a_model_of_embeddings_is_refused(cli: Cli, flags: list[str]) -> None:
    said = cli("bench", MODELS / "bert.gguf", *flags)
    assert said.code == 1 and "makes embeddings and cannot generate text" in said.err


@pytest.mark.parametrize("guesses", ["--spec", "--draft"])
def test_guesses_of_several_sequences_are_not_counted(cli: Cli, model: Path, guesses: str) -> None:
    value = "auto" if guesses == "--spec" else model
    args = ["bench", model, "-p", "3", "-n", "3", "--repeat", "1", guesses, value]
    said = cli(*args, "--parallel", "1,2")
    assert said.code == 2 and "go with one sequence" in said.err
    assert cli(*args).code == 0
