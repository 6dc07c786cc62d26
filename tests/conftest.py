"""What all tests share: real models and vocabularies on demand, and a last line that counts what was left out."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).resolve().parent

# Tests leave nothing in the user's cache; those of the cache of packed weights name a folder.
os.environ.setdefault("GGFW_PACKED_CACHE_MB", "0")

#: A skip whose reason starts with one of these is counted in the last line.
WANTING = ("needs model:", "needs network:", "needs fixtures:")


def _fetch() -> ModuleType:
    """Import ``tests/fetch.py``, which is no package member under the import mode of this suite."""
    if "ggfw_tests_fetch" not in sys.modules:
        spec = importlib.util.spec_from_file_location("ggfw_tests_fetch", HERE / "fetch.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return sys.modules["ggfw_tests_fetch"]


def _or_skip(get: Callable[[], Path], what: str) -> Path:
    try:
        return get()
    except _fetch().Unavailable as exc:
        pytest.skip(f"{what}: {exc}")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct.Q4_1.gguf."""
    return _or_skip(lambda: _fetch().model_path("smollm2"), "needs model")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """gemma-3-270m-q4_k_m.gguf."""
    return _or_skip(lambda: _fetch().model_path("gemma3"), "needs model")


@pytest.fixture(scope="session")
def vocab_dir() -> Path:
    """Folder with llama.cpp's ``ggml-vocab-*.gguf`` files."""
    return _or_skip(lambda: _fetch().vocab_folder(), "needs network")


@pytest.fixture(scope="session")
def template_dir() -> Path:
    """Folder with the chat templates (``*.jinja``) that llama.cpp collects."""
    return _or_skip(lambda: _fetch().template_folder(), "needs network")


@pytest.fixture(scope="session")
def fixtures_dir() -> Path:
    """Folder of the conformance fixtures: ``GGFW_TEST_FIXTURES``, or ``shared/fixtures`` beside the checkout."""
    folder = Path(os.environ.get("GGFW_TEST_FIXTURES") or HERE.parents[1] / "shared" / "fixtures")
    if not (folder / "check_logits.py").is_file():
        pytest.skip(
            f"needs fixtures: no conformance fixtures in {folder}; name their folder in GGFW_TEST_FIXTURES"
        )
    return folder


def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep the user's own switches out of the tests."""
    for name in ("GGFW_PLUGINS", "GGFW_DISABLE_PLUGINS", "GGFW_STRICT_PLUGINS"):
        os.environ.pop(name, None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Print, behind pytest's own closing line, how many tests were skipped for want of something."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or session.config.option.collectonly:
        return
    skipped = [report for report in reporter.stats.get("skipped", []) if isinstance(report.longrepr, tuple)]
    wanting = [
        report for report in skipped if report.longrepr[2].removeprefix("Skipped: ").startswith(WANTING)
    ]
    reporter.ensure_newline()
    reporter.write_line(f"{len(wanting)} tests skipped for want of a model or network")
