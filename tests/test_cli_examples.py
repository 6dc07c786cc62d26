"""The programs in ``examples/`` run, with tiny models and scripted answers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tiny_models import write_llama

import ggfw
from ggfw.errors import InvalidRequest
from ggfw.testing import ScriptedModel

FOLDER = Path(__file__).parents[1] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pydantic looks names up there
    spec.loader.exec_module(module)
    return module


def test_all_examples_are_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {
        "generate", "stream", "chat_with_tools", "structured_output", "embeddings_search", "custom_sampler_stage",
        "custom_model_source", "many_requests",
        "serve_model", "in_sanic_app", "in_fastapi_app",  # run by test_server_embedded.py
    }  # fmt: skip


def test_generate() -> None:
    with ScriptedModel.load(None, [" there was an otter."]) as model:
        assert example("generate").main(model).text == " there was an otter."


def test_stream() -> None:
    with ScriptedModel.load(None, ["Otters " * 50]) as model:
        shown = example("stream").main(model, most=20)
        assert shown.startswith("Otters Otters") and len(shown) >= 20
        assert len(shown) < 7 * 50, "it was stopped"


def test_chat_with_tools() -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    with ScriptedModel.load(None, [call, "It is 5."]) as model:
        assert example("chat_with_tools").main(model) == "It is 5."
        assert "5" in model.prompts[1].partition("tool_call")[2]


def test_structured_output(tmp_path: Path) -> None:
    with ggfw.load(write_llama(tmp_path / "tiny.gguf", n_ctx=2048)) as model:
        review = example("structured_output").main(model)
        assert review.mood in ("good", "bad", "mixed") and 1 <= review.stars <= 5


def test_embeddings_search(tmp_path: Path) -> None:
    module = example("embeddings_search")
    with ggfw.load(write_llama(tmp_path / "tiny.gguf", n_ctx=512)) as model:
        ranked = module.main(model, module.TEXTS[1])
        assert ranked[0][1] == module.TEXTS[1] and ranked[0][0] == pytest.approx(1.0, abs=1e-4)
        assert len(ranked) == 3 and ranked[0][0] > ranked[1][0]


def test_custom_sampler_stage() -> None:
    assert example("custom_sampler_stage").main() == [7, 9]


def test_custom_model_source(tmp_path: Path) -> None:
    write_llama(tmp_path / "otter.gguf")
    module = example("custom_model_source")
    assert module.main(tmp_path, "otter")
    with pytest.raises(ggfw.ModelNotFound):
        module.main(tmp_path, "../otter")


def test_many_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import asyncio

    module = example("many_requests")
    asyncio.run(module.main(str(write_llama(tmp_path / "tiny.gguf", n_ctx=512))))
    said = capsys.readouterr().out
    assert all(question in said for question in module.QUESTIONS)


# -- helpers of the library that the examples rest on ---------------------------------------------------------------


def test_cosine_similarity() -> None:
    assert ggfw.cosine_similarity([1, 0], [0, 2]) == 0.0
    assert ggfw.cosine_similarity([1, 2], [2, 4]) == pytest.approx(1.0)
    assert ggfw.cosine_similarity([1, 2], [-1, -2]) == pytest.approx(-1.0)
    for a, b in (([1], [1, 2]), ([], []), ([0, 0], [1, 1]), ([[1]], [[1]]), ([float("nan")], [1])):
        with pytest.raises(InvalidRequest):
            ggfw.cosine_similarity(a, b)


def test_tokens_of_a_model(tmp_path: Path) -> None:
    with ggfw.load(write_llama(tmp_path / "tiny.gguf")) as model:
        near = model.nearest_tokens(70, 3)
        assert len(near) == 3 and all(token.id != 70 for token in near)
        assert near[0].similarity is not None and near[0].similarity >= (near[1].similarity or 0)
        assert [token.text for token in model.search_tokens("A", 1)] == ["A"]


def test_the_face_of_the_package() -> None:
    assert callable(ggfw.quantize.quantize_file) and callable(ggfw.quants.quantize)
    assert (Path(ggfw.__file__).parent / "py.typed").is_file()
