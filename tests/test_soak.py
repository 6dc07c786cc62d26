"""The soak test of bench/: what it takes for a fault, how it judges figures, and a short run of it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import soak
from load_client import Load
from soak import Sample, Watch, growth, judge, slope
from soak_clients import Outcome, Visitor, one_response, status_of
from soak_faults import Faults


@pytest.mark.parametrize(
    ("outcome", "fault"),
    [
        (Outcome("ask", 200, (200,)), False),
        (Outcome("ask", 500, (200,)), True),
        (Outcome("ask", 503, left=True), True),
        (Outcome("ask", 429, (200,)), False),  # the queue was full
        (Outcome("mangle", 200, (400, 404)), True),
        (Outcome("mangle", 400, (400, 404)), False),
        (Outcome("ask", 0, (200,)), True),  # closed without an answer
        (Outcome("leave", 0, left=True), False),
        (Outcome("ask", 200, (200,), trouble="cut off"), True),
    ],
)
def test_what_counts_as_a_fault(outcome: Outcome, fault: bool) -> None:
    assert bool(outcome.fault) is fault


def test_statuses_and_responses_are_read() -> None:
    assert status_of(b"HTTP/1.1 404 Not Found\r\n") == 404
    assert status_of(b"") == status_of(b"garbage 200 x") == status_of(b"HTTP/1.1") == 0

    async def two() -> list[tuple[int, str]]:
        reader = asyncio.StreamReader()
        reader.feed_data(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab")
        reader.feed_data(b"HTTP/1.1 400 No\r\ncontent-length: 1\r\n\r\nc")
        return [await one_response(reader), await one_response(reader)]

    assert asyncio.run(two()) == [(200, "ab"), (400, "c")]


def test_every_question_is_json_and_follows_from_the_seed() -> None:
    def asked() -> list[str]:
        visitor = Visitor("h", 1, 1024, seed=5)
        return [json.dumps(visitor.question()) for _ in range(300)]

    assert asked() == asked()
    assert len({json.loads(one)["path"] for one in asked()}) == 9


def samples(*rss_mib: float, every: float = 60.0) -> list[Sample]:
    return [Sample(n * every, int(mib * 2**20), 5, 10, 1, 0, 0.1, 100) for n, mib in enumerate(rss_mib)]


def test_growth_is_a_line_and_a_difference_of_medians() -> None:
    assert slope(samples(*range(100, 120))) == pytest.approx(60, rel=1e-6)
    assert growth(samples(*range(100, 120))) == pytest.approx(16)
    assert growth(samples(*[100.0] * 9, 190.0)) == pytest.approx(0, abs=50)
    assert slope(samples(100)) == 0


def verdict(
    *rss_mib: float, log: str = "", code: int = 0, faults: tuple[str, ...] = (), **changed: Any
) -> Any:
    watch = Watch(1, Visitor("h", 1, 1024, 1), samples(*rss_mib))
    watch.outcomes = Counter({("ask", "200"): 3, ("leave", "left"): 2})
    watch.faults = list(faults)
    last = asdict(Sample(0, 100 << 20, 5, 10, 0, 0, 0.0, 100)) | changed.pop("last", {})
    found = {
        "last": last,
        "busy_slots": 0,
        "stuck_clients": 0,
        "same_answer": True,
        "warm_rss": 100 << 20,
        "warm_files": 10,
        "warm_threads": 5,
        "warm_kept": 100,
        "budget": 100,
    }
    return judge(watch, found | changed, 30, log, code)


def test_a_healthy_run_holds() -> None:
    report = verdict(*[300.0] * 30, log='{"event": "inference"}\n')
    assert all(report["holds"].values()) and report["by_status"] == {"200": 3, "left": 2}
    assert "FAILS" not in soak.table({**report, "samples": []})


@pytest.mark.parametrize(
    ("what", "changed"),
    [
        ("memory flat", {"rss": range(300, 330)}),
        ("runs or waits", {"last": {"running": 1}}),
        ("slot is stuck", {"busy_slots": 1}),
        ("slot is stuck", {"stuck_clients": 1}),
        ("page is in use", {"last": {"pages_in_use": 0.01}}),
        ("no 5xx", {"faults": ("ask: status 500",)}),
        ("open files", {"last": {"files": 40}}),
        ("fixed question", {"same_answer": False}),
        ("server's log", {"log": "Traceback (most recent call last):\n"}),
        ("server's log", {"log": "Task exception was never retrieved\n"}),
        ("good order", {"code": -9}),
        ("prefix cache", {"warm_kept": 10}),
    ],
)
def test_what_does_not_hold_is_named(what: str, changed: dict[str, Any]) -> None:
    rss = changed.pop("rss", None) or [300.0] * 30
    report = verdict(*rss, **changed)
    assert [name for name, holds in report["holds"].items() if not holds] == [
        next(name for name in report["holds"] if what in name)
    ]
    assert "FAILS" in soak.table(report)


def test_a_stream_is_timed_wherever_it_is_cut() -> None:
    from http_load import Streamer

    text = (
        b"HTTP/1.1 200 OK\r\n\r\n"
        b'data: {"choices":[{"text":"a"}]}\n\ndata: {"choices":[{"text":"bc"}]}\n\n'
        b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\n'
        b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n'
        b"data: [DONE]\n\n"
    )

    async def cut(at: int) -> None:
        streamer = Streamer(b"")
        streamer.data_received(text[:at])
        streamer.data_received(text[at:])
        streamer.connection_lost(None)
        timing = streamer.finish(Load((1,), 2))
        assert len(timing.arrivals) == timing.new_tokens == 2

    for at in range(1, len(text), 3):
        asyncio.run(cut(at))

    async def refused() -> None:
        streamer = Streamer(b"")
        streamer.data_received(b'HTTP/1.1 429 Too Many\r\n\r\n{"error":{}}')
        streamer.finish(Load((1,), 2))

    with pytest.raises(RuntimeError, match="429"):
        asyncio.run(refused())


def test_only_what_a_fault_explains_may_fail(tmp_path: Path) -> None:
    faults = Faults(0, Visitor("h", 1, 64, 1), tmp_path / "a", tmp_path / "b", tmp_path, "victim", 1)
    wrong = Outcome("victim", 500, (200,))
    faults._until = 10.0
    assert not faults.excuse(wrong, began=9.0).fault and faults.excuse(wrong, began=11.0).fault
    assert faults.excuse(Outcome("victim", 200, (200,)), began=9.0).status == 200
    told = {"event": "request_failed", "error": "/x/victim.gguf was changed while it was in use"}
    assert soak.explained(json.dumps(told), "victim")
    assert not soak.explained(json.dumps({**told, "error": "KeyError"}), "victim")
    assert not soak.explained("Traceback victim.gguf", "victim")


@pytest.mark.slow
def test_a_short_soak(smollm2_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "soak.json"
    size = ["--ctx", "512", "--parallel", "4", "--max-queue", "6", "--prefix-cache-mb", "8"]
    arguments = [str(smollm2_path), "--minutes", "0.4", "--clients", "12", *size]
    code = soak.main([*arguments, "--every", "1", "--out", str(out)])
    report = json.loads(out.read_text())
    assert code == 0, capsys.readouterr()
    assert report["visits"] > 20 and report["by_status"]["200"] > 5
