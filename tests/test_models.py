"""Finding and choosing model files: case, projectors, sets of shards, exactness, ambiguity."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggfw
from ggfw.gguf import write_gguf, write_split
from ggfw.models import describe, discover_models, select_model, supports


def write(path: Path, architecture: str = "llama", **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"general.architecture": architecture, f"{architecture}.context_length": 128, **more}
    write_gguf(path, metadata, [("t", np.ones((2, 3), np.float32))])
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "org/Alpha-7B/alpha-7b.Q4_0.gguf", **{"general.name": "Alpha"})
    write(tmp_path / "org/Alpha-7B/alpha-7b.Q8_0.GGUF")
    write(tmp_path / "org/Alpha-7B/mmproj-alpha.gguf")
    write(tmp_path / "org/vision/projector.gguf", "clip")
    write(tmp_path / "Beta.gguf", **{"general.name": "The Beta Model"})
    write(tmp_path / "beta-large.gguf")
    write(tmp_path / "odd.gguf", "no-such-arch")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\x03")
    (tmp_path / "notes.txt").write_text("x")
    return tmp_path


def test_discovery(folder: Path) -> None:
    said: list[Any] = []
    entries = {e.id: e for e in discover_models(folder, log=lambda e, f: said.append((e, f)))}
    assert {i: e.state for i, e in entries.items()} == {
        "org/Alpha-7B/alpha-7b.Q4_0": "ok",
        "org/Alpha-7B/alpha-7b.Q8_0": "ok",
        "org/Alpha-7B/mmproj-alpha": "projector",
        "org/vision/projector": "projector",
        "Beta": "ok",
        "beta-large": "ok",
        "odd": "unsupported",
        "broken": "broken",
    }
    alpha = entries["org/Alpha-7B/alpha-7b.Q4_0"]
    assert (alpha.repository, alpha.file, alpha.name) == ("Alpha-7B", "alpha-7b.Q4_0.gguf", "Alpha")
    assert alpha.context == 128 and alpha.size_bytes == alpha.path.stat().st_size
    assert "no-such-arch" in entries["odd"].reason and "broken.gguf" in entries["broken"].reason
    assert [e for e, _ in said] == ["model_skipped"]
    assert alpha.to_dict()["path"] == str(alpha.path)
    assert discover_models(folder / "nowhere") == []
    assert len(discover_models([folder, folder / "org"])) == len(entries), "each file once"


@pytest.mark.parametrize(
    ("reference", "id"),
    [
        ("beta", "Beta"),  # exact beats beta-large
        ("BETA.GGUF", "Beta"),
        ("the beta model", "Beta"),
        ("large", "beta-large"),
        ("q8_0", "org/Alpha-7B/alpha-7b.Q8_0"),
        ("alpha", "org/Alpha-7B/alpha-7b.Q4_0"),  # the exact name
        ("org/alpha-7b/ALPHA-7b.q4_0", "org/Alpha-7B/alpha-7b.Q4_0"),
        ("alpha-7b.q4_0.gguf", "org/Alpha-7B/alpha-7b.Q4_0"),
    ],
)
def test_selection(folder: Path, reference: str, id: str) -> None:
    assert select_model(reference, folder).id == id
    assert select_model(reference, discover_models(folder)).id == id


def test_ambiguity_names_the_candidates(folder: Path) -> None:
    with pytest.raises(ggfw.AmbiguousModel, match=r"alpha-7b\.Q4_0, org/Alpha-7B/alpha-7b\.Q8_0"):
        select_model("alpha-7b", folder)
    with pytest.raises(ggfw.AmbiguousModel, match="there are 4 models"):
        select_model(None, folder)


def test_every_candidate_that_is_named_can_be_meant(tmp_path: Path) -> None:
    """Copies of a file in folders below, and files of one name in two folders."""
    for place in ("m.gguf", "sub/m.gguf", "sub/deep/m.gguf", "other/n.gguf"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / place)
    assert select_model("m", tmp_path).id == "m"
    assert select_model("SUB/m", tmp_path).id == "sub/m"
    folders = [tmp_path / "sub", tmp_path / "sub" / "deep"]
    with pytest.raises(ggfw.AmbiguousModel, match="name one of them") as failed:
        select_model("m.gguf", folders)
    named = str(failed.value).split(": ", 1)[1].split(";")[0].split(", ")
    assert len(set(named)) == len(named) >= 2
    assert [select_model(name, folders).state for name in named] == ["ok"] * len(named)


def test_nothing_fits(folder: Path) -> None:
    with pytest.raises(ggfw.ModelNotFound, match="did you mean.*beta-large"):
        select_model("beta-lrge", folder)
    with pytest.raises(ggfw.ModelNotFound, match="no model"):
        select_model(None, folder / "nowhere")
    with pytest.raises(ggfw.UnsupportedError, match="no-such-arch"):
        select_model("odd", folder)
    with pytest.raises(ggfw.UnsupportedError, match="projector"):
        select_model("projector", folder)


def test_an_existing_file_or_folder_wins(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = write(tmp_path_factory.mktemp("else") / "x.gguf")
    assert select_model(elsewhere, folder).path == elsewhere
    assert select_model(str(elsewhere.parent)).path == elsewhere
    with pytest.raises(ggfw.UnsupportedError, match="broken"):
        select_model(folder / "broken.gguf")


def test_what_cannot_be_read_costs_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "good.gguf")
    (tmp_path / "dangling.gguf").symlink_to("nothing.gguf")
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    entries = {e.id: e for e in discover_models(tmp_path)}
    assert {i: e.state for i, e in entries.items()} == {
        "good": "ok",
        "dangling": "broken",
        "loop": "broken",
        "pipe": "broken",
    }
    assert "dangling.gguf" in entries["dangling"].reason
    assert select_model(tmp_path).id == "good"


def test_sets_of_shards_are_listed_once(tmp_path: Path) -> None:
    tensors = [(f"t{i}", np.full((8, 8), i, np.float32)) for i in range(3)]
    metadata = {"general.architecture": "llama", "llama.context_length": 128}
    paths = write_split(tmp_path / "big", metadata, tensors, max_tensors=1)
    assert len(paths) == 3
    (entry,) = discover_models(tmp_path)
    assert (entry.id, entry.state) == ("big", "ok")
    assert entry.size_bytes == sum(p.stat().st_size for p in paths)
    assert describe(paths[1]).path == paths[0]
    assert select_model("big", tmp_path).path == paths[0]
    paths[1].unlink()
    (entry,) = discover_models(tmp_path)
    assert entry.state == "broken" and "00002" in entry.reason


def test_supports() -> None:
    assert supports("llama") and not supports("no-such-arch")
