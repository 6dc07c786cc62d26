"""Entry points read from folders are those that importlib.metadata finds."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from ggfw.entry_points import installed


def _install(folder: Path, name: str, text: str, version: str = "1.0", headers: str | None = None) -> Path:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        headers or f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: no"
    )
    (info / "entry_points.txt").write_text(text)
    return info


def _both(group: str) -> list[tuple[str, str, str]]:
    """What we find, which must be what the standard library finds."""
    ours = sorted((d.name, d.distribution, d.version) for d in installed(group))
    theirs = sorted(
        (e.name, e.dist.metadata["Name"], e.dist.version)
        for e in metadata.entry_points(group=group)
        if e.dist is not None
    )
    assert ours == theirs
    return ours


def test_the_installed_ones() -> None:
    assert len(_both("ggfw")) > 50
    assert _both("console_scripts")
    assert _both("pytest11")


def test_sections_comments_and_shadowed_distributions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "[other]\na = x\n\n# b = x\n[ ggfw.t ]\n; c = x\n  d  =  json:loads [extra]\ne=json\n[more]\nf = x\n"
    )
    _install(tmp_path / "one", "Toy-pack", text)
    _install(tmp_path / "two", "toy.pack", "[ggfw.t]\ng = json\n", "2.0")
    _install(tmp_path / "two", "third", "[ggfw.t]\nh = json:decoder.JSONDecoder\nbad = no module!\n")
    monkeypatch.syspath_prepend(str(tmp_path / "two"))
    monkeypatch.syspath_prepend(str(tmp_path / "one"))
    found = {door.name: door for door in installed("ggfw.t")}
    assert {n: (d.distribution, d.version) for n, d in found.items() if n != "c"} == {
        "d": ("Toy-pack", "1.0"),
        "e": ("Toy-pack", "1.0"),
        "h": ("third", "1.0"),
        "bad": ("third", "1.0"),
    }
    import json

    assert found["d"].load() is json.loads
    assert found["e"].load() is json
    assert found["h"].load() is json.JSONDecoder
    with pytest.raises(ImportError, match="no module!"):
        found["bad"].load()


def test_damaged_metadata_costs_the_name_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = _install(tmp_path, "broken", "[ggfw.t]\na = json\n")
    (info / "METADATA").write_bytes(b"\xff\xfe")
    (_install(tmp_path, "unreadable", "") / "entry_points.txt").write_bytes(b"[ggfw.t]\n\xff = x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (door,) = installed("ggfw.t")
    assert (door.name, door.distribution, door.version) == ("a", "", "")


def test_distributions_in_archives_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(
            "zipped-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: zipped\nVersion: 1.0\n\n"
        )
        file.writestr("zipped-1.0.dist-info/entry_points.txt", "[ggfw.t]\na = json\n")
    monkeypatch.syspath_prepend(str(archive))
    assert _both("ggfw.t") == [("a", "zipped", "1.0")]


@pytest.mark.parametrize("damage", [b"[console_scripts]\na = m:a # \xe9\n", b"[ggfw.t]\nno line\n"])
def test_a_damaged_distribution_beside_an_archive_costs_nobody_else(
    damage: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("module.py", "")
    _install(tmp_path / "good", "good", "[ggfw.t]\na = json\n")
    (_install(tmp_path / "bad", "bad", "") / "entry_points.txt").write_bytes(damage)
    for path in ("good", "bad", "packed.zip"):
        monkeypatch.syspath_prepend(str(tmp_path / path))
    assert [(d.name, d.distribution) for d in installed("ggfw.t")] == [("a", "good")]


def test_an_archive_whose_bytes_are_damaged_costs_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("bad-1.0.dist-info/METADATA", "Name: bad\nVersion: 1.0\n")
    archive.write_bytes(archive.read_bytes().replace(b"Name: bad", b"Name: mad", 1))  # the sum is another now
    _install(tmp_path / "good", "good", "[ggfw.t]\na = json\n")
    for path in ("good", "packed.zip"):
        monkeypatch.syspath_prepend(str(tmp_path / path))
    assert [(d.name, d.distribution) for d in installed("ggfw.t")] == [("a", "good")]


class _Broken(metadata.Distribution):
    """A distribution of which nothing can be read."""

    def read_text(self, filename: str) -> str | None:
        raise RuntimeError(f"{filename} is not for you")

    def locate_file(self, path: object) -> Path:
        return Path(str(path))


class _Leaving(_Broken):
    """A distribution that ends whoever reads it."""

    def read_text(self, filename: str) -> str | None:
        raise SystemExit(0)


def _refuses() -> Any:
    raise RuntimeError("nothing is found here")


def _leaves() -> Any:
    yield from ()
    raise SystemExit(0)


@pytest.mark.parametrize("find", [lambda: [_Broken()], lambda: [_Leaving()], _refuses, _leaves])
def test_a_finder_that_fails_costs_nobody_else(
    find: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder(metadata.DistributionFinder):
        def find_spec(self, *_: object) -> None:
            return None

        def find_distributions(self, context: object = None) -> Any:
            return find()

    _install(tmp_path, "good", "[ggfw.t]\na = json\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    assert [(d.name, d.distribution) for d in installed("ggfw.t")] == [("a", "good")]


@pytest.mark.parametrize("error", [RuntimeError("nobody may ask"), SystemExit(0)])
def test_a_finder_that_cannot_be_asked_costs_nobody_else(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder:
        def find_spec(self, *_: object) -> None:
            return None

        def __getattr__(self, name: str) -> Any:
            raise error

        def __eq__(self, other: object) -> bool:
            raise error

    _install(tmp_path, "good", "[ggfw.t]\na = json\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    assert [(d.name, d.distribution) for d in installed("ggfw.t")] == [("a", "good")]


def test_what_is_no_path_on_the_path_costs_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python itself passes over it."""
    _install(tmp_path, "good", "[ggfw.t]\na = json\n")
    monkeypatch.setattr(sys, "path", [None, 3, b"bytes", object(), "a\0b", *sys.path, str(tmp_path)])
    assert [(d.name, d.distribution) for d in installed("ggfw.t")] == [("a", "good")]


def test_finders_of_others_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder(metadata.DistributionFinder):
        def find_spec(self, *_: object) -> None:
            return None

        def find_distributions(self, context: object = None) -> list[metadata.Distribution]:
            class Made(metadata.Distribution):
                def read_text(self, filename: str) -> str | None:
                    return {
                        "METADATA": "Metadata-Version: 2.1\nName: made\nVersion: 3\n\n",
                        "entry_points.txt": "[ggfw.t]\na = json\n",
                    }.get(filename)

                def locate_file(self, path: object) -> Path:
                    return Path(str(path))

            return [Made()]

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert [(d.name, d.distribution, d.version) for d in installed("ggfw.t")] == [("a", "made", "3")]


def test_the_parsers_of_mail_and_archives_stay_out() -> None:
    assert [f for f in sys.meta_path if hasattr(f, "find_distributions")] == [PathFinder]
    code = (
        "import sys; before = set(sys.modules)\n"
        "from ggfw.entry_points import installed\n"
        "assert installed('ggfw')\n"
        "sys.exit(' '.join({'importlib.metadata', 'email', 'zipfile'} & (set(sys.modules) - before)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_eggs_and_folders_in_capitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = _install(tmp_path, "Loud", "[ggfw.t]\na = json\n")
    info.rename(info.with_suffix(".DIST-INFO"))
    egg = tmp_path / "Old_one-1.0-py3.11.egg"
    egg.mkdir()
    metadata_of_egg = _install(tmp_path, "Old-one", "[ggfw.t]\nb = json\n").rename(egg / "EGG-INFO")
    (metadata_of_egg / "METADATA").rename(metadata_of_egg / "PKG-INFO")
    _install(tmp_path / "later", "old.one", "[ggfw.t]\nc = json\n")
    for folder in (tmp_path / "later", egg, tmp_path):
        monkeypatch.syspath_prepend(str(folder))
    assert _both("ggfw.t") == [("a", "Loud", "1.0"), ("b", "Old-one", "1.0")]
