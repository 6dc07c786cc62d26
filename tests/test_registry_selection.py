"""Which one? Explicit choice > score > priority > built-in > name, for every kind, and errors that name the way out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ggfw.descriptors import (
    KINDS,
    ArchitectureSpec,
    ChatDialect,
    Descriptor,
    KernelBackend,
    QuantFormat,
    SamplerStage,
)
from ggfw.discovery import Found, Offer, Origin
from ggfw.errors import BackendError, UnknownArchitecture, UnknownQuantFormat, UnsupportedError
from ggfw.registry import Registry, default_registry

OURS = Origin("architectures.x", "ggfw", "0.1")
THEIRS = Origin("theirs", "their-package", "2.0")
OTHERS = Origin("others", "other-package", "3.0")


def registry(*offers: tuple[Origin, Descriptor]) -> Registry:
    return Registry(Found([Offer(item.kind, item, origin) for origin, item in offers]))


def arch(
    name: str, *gguf: str, priority: int = 0, match: Callable[..., int] | None = None
) -> ArchitectureSpec:
    return ArchitectureSpec(name=name, gguf_names=gguf or (name,), load="m:C", priority=priority, match=match)


def backend(name: str, score: int | Exception, priority: int = 0) -> KernelBackend:
    def probe() -> int:
        if isinstance(score, Exception):
            raise score
        return score

    return KernelBackend(name=name, probe=probe, library=lambda: f"/lib/{name}", priority=priority)


def test_higher_priority_replaces_and_the_loser_is_listed() -> None:
    ours, theirs = arch("llama"), arch("llama", priority=1)
    r = registry((OURS, ours), (THEIRS, theirs))
    assert r.architectures["llama"] is theirs
    assert [(row.state, row.distribution) for row in r.rows()] == [
        ("ok", "their-package"),
        ("shadowed", "ggfw"),
    ]
    assert "by theirs of their-package, whose priority is 1 against 0" in r.rows()[1].reason


@pytest.mark.parametrize("swap", [False, True])
def test_equal_priority_keeps_the_builtin_then_the_first_name(swap: bool) -> None:
    one, two = arch("llama"), arch("llama")
    pair = [(OURS, one), (THEIRS, two)]
    r = registry(*(pair[::-1] if swap else pair))
    assert r.architectures["llama"] is one
    assert r.rows()[1].state == "shadowed" and "in conflict" in r.rows()[1].reason
    pair = [(OTHERS, one), (THEIRS, two)]
    assert registry(*(pair[::-1] if swap else pair)).architectures["llama"] is one


def test_same_name_in_two_kinds_is_no_conflict() -> None:
    dialect = ChatDialect(name="llama", match=lambda metadata: 1, load="m:C")
    r = registry((OURS, arch("llama")), (THEIRS, dialect))
    assert [row.state for row in r.rows()] == ["ok", "ok"]


def test_architecture_by_label_then_by_match_then_an_error_with_the_way_out() -> None:
    def guess(metadata: Mapping[str, Any]) -> int:
        return 5 if metadata.get("toy.block_count") else 0

    def broken(metadata: Mapping[str, Any]) -> int:
        raise RuntimeError("no idea")

    plain, toy = arch("llama", "llama", "llama2"), arch("toy", match=guess)
    r = registry((OURS, plain), (THEIRS, toy), (OTHERS, arch("bad", match=broken)))
    assert r.architecture_for({"general.architecture": "llama2"}) is plain
    assert r.architecture_for({"general.architecture": "tooy", "toy.block_count": 2}) is toy
    assert r.architecture_for({"toy.block_count": 2}) is toy
    assert r.architecture_for({"general.architecture": "llama"}, name="toy") is toy
    with pytest.raises(UnknownArchitecture, match="'mamba'.*installed: .*llama.*plugin can add it"):
        r.architecture_for({"general.architecture": "mamba"})
    with pytest.raises(UnknownArchitecture, match="'none-such'"):
        r.architecture_for({}, name="none-such")
    with pytest.raises(UnknownArchitecture, match="names no architecture"):
        r.architecture_for({})
    (bad,) = r.broken()
    assert (bad.name, bad.stage) == ("bad", "match") and "RuntimeError: no idea" in bad.reason


def test_two_architectures_serving_one_label() -> None:
    ours, theirs = arch("llama"), arch("llama-fast", "llama")
    assert (
        registry((OURS, ours), (THEIRS, theirs)).architecture_for({"general.architecture": "llama"}) is ours
    )
    theirs = arch("llama-fast", "llama", priority=1)
    assert (
        registry((OURS, ours), (THEIRS, theirs)).architecture_for({"general.architecture": "llama"}) is theirs
    )


def test_backends_by_score_then_priority() -> None:
    r = registry(
        (OURS, backend("slow", 1)),
        (OURS, backend("fast", 40)),
        (THEIRS, backend("also", 40, priority=1)),
        (THEIRS, backend("foreign", 0)),
        (OTHERS, backend("broken", OSError("no such library"))),
    )
    assert [b.name for b in r.backends()] == ["also", "fast", "slow"]
    assert r.backend().name == "also"
    assert r.backend("slow").name == "slow"
    with pytest.raises(BackendError, match="'nope'; usable here: also, fast, slow"):
        r.backend("nope")
    with pytest.raises(BackendError, match="'foreign' cannot be used: cannot run on this machine"):
        r.backend("foreign")
    with pytest.raises(BackendError, match="no such library"):
        r.backend("broken")
    states = {row.name: row.state for row in r.rows("kernel_backends")}
    assert states == {"also": "ok", "fast": "ok", "slow": "ok", "foreign": "available", "broken": "failed"}
    assert r.score("foreign") == 0


def test_no_backend_says_why() -> None:
    with pytest.raises(BackendError, match="slow: OSError: gone"):
        registry((OURS, backend("slow", OSError("gone")))).backend()
    with pytest.raises(BackendError, match="none is installed"):
        registry().backend()


def test_a_probe_is_asked_once() -> None:
    calls: list[int] = []
    item = KernelBackend(name="x", probe=lambda: calls.append(1) or 7, library=lambda: "x")
    r = registry((OURS, item))
    for _ in range(3):
        r.backends(), r.rows()
    assert calls == [1]


def test_quant_format_by_type() -> None:
    def fmt(name: str, ggml_type: int, priority: int = 0) -> QuantFormat:
        return QuantFormat(
            name=name, ggml_type=ggml_type, block_size=32, type_size=18, dequantize="m:f", priority=priority
        )

    r = registry((OURS, fmt("Q4_0", 2)), (THEIRS, fmt("Q4_0x", 2)), (THEIRS, fmt("Q4_1", 3)))
    assert r.quant_format_by_type(2).name == "Q4_0"
    assert r.quant_format_by_type(3).name == "Q4_1"
    with pytest.raises(UnknownQuantFormat, match="type 99; installed: Q4_0=2, Q4_1=3"):
        r.quant_format_by_type(99)
    assert registry((OURS, fmt("a", 2)), (THEIRS, fmt("b", 2, 1))).quant_format_by_type(2).name == "b"


def test_dialect_and_stage_order() -> None:
    low = ChatDialect(name="generic", match=lambda metadata: 1, load="m:C")
    high = ChatDialect(name="chatml", match=lambda metadata: 9 * ("im_start" in metadata["t"]), load="m:C")
    r = registry((OURS, low), (OURS, high))
    assert r.dialect_for({"t": "<|im_start|>"}) is high
    assert r.dialect_for({"t": ""}) is low
    assert r.dialect_for({"t": ""}, name="chatml") is high
    with pytest.raises(UnsupportedError, match="'nope'; installed: chatml, generic"):
        r.dialect_for({}, name="nope")
    stages = [SamplerStage(name=n, order=o, load="m:f") for n, o in (("b", 200), ("a", 300), ("c", 100))]
    assert list(registry(*((OURS, stage) for stage in stages)).sampler_stages) == ["c", "b", "a"]


def test_mappings_are_read_only_and_complete() -> None:
    r = registry()
    for kind in KINDS:
        with pytest.raises(TypeError):
            getattr(r, kind)["x"] = 1


def test_one_registry_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggfw.registry._default", None)
    barrier, seen = threading.Barrier(4), []

    def ask() -> None:
        barrier.wait()
        seen.append(default_registry())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4 and len({id(r) for r in seen}) == 1
