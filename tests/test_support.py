"""What a file needs, what is installed, what is missing: for every reference model, and for files nobody can run."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ggfw.gguf import GGUF, write_gguf
from ggfw.support import Support, support

if TYPE_CHECKING:
    from cli_support import Cli

pytest_plugins = ["cli_support"]

DATA = Path(__file__).parent / "data"
MODELS = sorted([*(DATA / "models").glob("*.gguf"), *(DATA / "quants").glob("*.gguf")])


def changed(keys: dict[str, Any], tensors: dict[str, Any] | None = None, base: str = "llama") -> bytes:
    """A reference model with other metadata or tensors; None removes."""
    tensors = dict(tensors or {})
    with GGUF.open(DATA / "models" / f"{base}.gguf") as gguf:
        meta = {k: v for k, v in {**gguf.metadata, **keys}.items() if v is not None}
        payload: list[tuple[str, Any]] = [(n, t) for n, t in gguf.tensors.items() if n not in tensors]
        out = io.BytesIO()
        write_gguf(out, meta, [*payload, *((n, t) for n, t in tensors.items() if t is not None)])
        return out.getvalue()


def of(data: bytes) -> Support:
    with GGUF.open(data) as gguf:
        found = support(gguf)
    json.dumps(found.to_dict())
    return found


def states(found: Support) -> dict[str, str]:
    return {need.kind: need.state for need in found.needs}


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_every_reference_model_runs_and_uses_all_its_tensors(path: Path) -> None:
    with GGUF.open(path) as gguf:
        found = support(gguf)
        types = {info.type_name for info in gguf.tensors.values()}
    assert found.runs and not found.missing and not found.unused
    assert found.makes == ("embeddings" if path.stem == "bert" else "text")
    assert {need.name for need in found.needs if need.kind == "format"} == types


def test_an_unknown_architecture_is_named() -> None:
    found = of(changed({"general.architecture": "wombat"}))
    assert not found.runs and found.makes == ""
    (need,) = found.missing
    assert (need.kind, need.name, need.state) == ("architecture", "wombat", "missing")
    assert "'wombat'" in need.detail and "a plugin can add it" in need.detail
    assert states(found)["tokenizer"] == "ok"  # the rest is looked at all the same


def test_a_file_without_architecture() -> None:
    (need,) = of(changed({"general.architecture": None})).missing
    assert need.kind == "architecture" and "names no architecture" in need.detail


def test_unknown_tensor_types_are_named() -> None:
    data = bytearray(changed({}))
    at = data.index(b"blk.1.ffn_up.weight") + len("blk.1.ffn_up.weight") + 4 + 2 * 8
    assert int.from_bytes(data[at : at + 4], "little") == 0
    data[at : at + 4] = (222).to_bytes(4, "little")
    found = of(bytes(data))
    (need,) = found.missing
    assert (need.kind, need.name) == ("format", "unknown(222)") and "222" in need.detail and not found.runs


def test_formats_without_a_kernel_are_converted() -> None:
    """Rows of 48 columns: no kernel takes them as F64."""
    values = np.zeros((96, 64), np.float64)
    found = of(changed({}, {"blk.0.ffn_up.weight": values}))
    need = next(need for need in found.needs if need.name == "F64")
    assert need.state == "converted" and "1 matrices become F32" in need.detail and found.runs


def test_tensors_that_do_not_fit_are_an_error_of_the_file() -> None:
    found = of(changed({}, {"blk.1.attn_q.weight": None}))
    (need,) = found.missing
    assert (need.kind, need.state) == (
        "tensors",
        "broken",
    ) and "blk.1.attn_q.weight is missing" in need.detail
    (need,) = of(changed({"llama.attention.head_count": 3})).missing
    assert "blk.0.attn_q.weight has" in need.detail
    extra = of(changed({}, {"blk.0.extra.weight": np.zeros(4, np.float32)}))
    assert extra.runs and extra.unused == ("blk.0.extra.weight",)


@pytest.mark.parametrize(
    ("keys", "state", "said"),
    [
        ({"tokenizer.ggml.model": "wombat"}, "missing", "'wombat'"),
        ({"tokenizer.ggml.pre": "wombat-bpe"}, "missing", "wombat-bpe"),
        ({"tokenizer.ggml.model": None}, "absent", "feed token ids"),
        ({"tokenizer.ggml.merges": None}, "broken", "merges"),
    ],
)
def test_tokenizers_that_are_missing(keys: dict[str, Any], state: str, said: str) -> None:
    found = of(changed(keys))
    need = next(need for need in found.needs if need.kind == "tokenizer")
    assert need.state == state and said in need.detail
    assert found.runs  # token ids can still be evaluated
    assert states(found)["template"] == "absent"


def test_templates() -> None:
    def template(text: str | None) -> Any:
        found = of(changed({"tokenizer.chat_template": text}))
        assert found.runs
        return next(need for need in found.needs if need.kind == "template")

    assert template("{% for m in messages %}{{ m.content }}{% endfor %}").state == "ok"
    assert template(None).state == "absent"
    broken = template("{% for m in %}")
    assert broken.state == "broken" and "--raw" in broken.detail


def test_rerankers_make_scores() -> None:
    out = np.zeros((1, 64), np.float32)
    found = of(changed({"bert.pooling_type": 4}, {"cls.output.weight": out}, base="bert"))
    assert found.makes == "scores" and found.runs and "template" not in states(found)


def test_an_empty_file_with_nothing_in_it() -> None:
    out = io.BytesIO()
    write_gguf(out, {"general.architecture": "clip", "general.type": "mmproj"}, [])
    found = of(out.getvalue())
    assert [(need.kind, need.state) for need in found.needs][:1] == [("architecture", "missing")]


def test_a_file_with_a_vocabulary_only() -> None:
    with GGUF.open(DATA / "models" / "llama.gguf") as gguf:
        out = io.BytesIO()
        write_gguf(out, gguf.metadata, [])
    (need,) = of(out.getvalue()).missing
    assert (need.kind, need.state) == ("tensors", "missing") and "no tensors" in need.detail


# -- ggfw show -------------------------------------------------------------------------------------------------------


def test_show_of_what_cannot_run(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "wombat.gguf"
    path.write_bytes(changed({"general.architecture": "wombat"}))
    said = cli("show", path)
    assert said.code == 0 and "cannot run here; missing: architecture wombat" in said.out
    found = json.loads(cli("show", path, "--json").out)
    assert found["architecture"] == "wombat" and found["support"]["runs"] is False
    assert "unknown architecture 'wombat'" in found["support"]["missing"][0]


def test_show_of_what_runs(cli: Cli) -> None:
    said = cli("show", DATA / "models" / "deepseek2.gguf")
    assert said.code == 0 and "runs here, and makes text" in said.out
    found = json.loads(cli("show", DATA / "models" / "bert.gguf", "--json").out)["support"]
    assert found["runs"] and found["makes"] == "embeddings" and found["missing"] == []
    assert {"kind": "architecture", "name": "bert", "state": "ok"}.items() <= found["needs"][0].items()
