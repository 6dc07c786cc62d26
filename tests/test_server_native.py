"""ggfw's own endpoints and llama-server's, over real sockets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import HI, ONE_CALL, TOOLS_CHATML, Served, function


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    scripts = {
        "call": ONE_CALL,
        "think": "<think>\nhm\n</think>\n\n42",
        "<PRE>": "gap",
        "stop": "one STOP two",
    }
    more = {"template": TOOLS_CHATML, "n_ctx": 1024, "pieces": ["<PRE>", "<SUF>", "<MID>"]}
    with Served(script="hello", scripts=scripts, **more) as server:
        yield server


def post(served: Served, path: str, **body: Any) -> httpx.Response:
    return served.http.post(path, json={"temperature": 0, **body})


def frames(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
    parts = [p for p in response.text.split("\n\n") if p and not p.startswith(":")]
    return [json.loads(p.removeprefix("data: ")) for p in parts]


def test_generate(served: Served) -> None:
    body = post(served, "/generate", prompt="x", system_prompt="be brief").json()
    assert set(body) >= {
        "text", "prompt_tokens", "generated_tokens", "ttft_ms", "prefill_ms", "decode_ms", "total_ms", "finish_reason",
    }  # fmt: skip
    assert (body["text"], body["generated_tokens"], body["finish_reason"]) == ("hello", 6, "stop")
    assert served.prompt().startswith("<s><|im_start|>system\nbe brief")
    body = post(
        served, "/generate", messages=[{"role": "user", "content": "call"}], tools=[function("f")]
    ).json()
    assert body["finish_reason"] == "tool_calls" and body["tool_calls"][0]["function"]["name"] == "f"
    assert post(served, "/generate", prompt="think").json()["reasoning"] == "hm"
    assert post(served, "/generate", prompt="x", temp=0, max_tokens=2).json()["text"] == "he"
    post(served, "/generate", prompt="as it is", raw=True)
    assert served.prompt() == "<s>as it is"
    got = frames(post(served, "/generate", prompt="x", stream=True))
    assert "".join(o["text"] for o in got[:-1]) == "hello" == got[-1]["text"] and got[-1]["done"] is True


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": "x", "messages": HI},
        {"messages": HI, "raw": True},
        {"prompt": "x", "top_p": 2},
        {"prompt": 5},
    ],
)
def test_mistakes(served: Served, body: dict[str, Any]) -> None:
    response = post(served, "/generate", **body)
    assert response.status_code == 400 and response.json()["error"]["type"] == "invalid_request_error"


def test_models(served: Served) -> None:
    body = served.http.get("/models").json()
    assert body["models"][0]["id"] == "fake" and body["models"][0]["loaded"] is True
    assert body["data"][0]["object"] == "model"
    assert served.http.post("/models/load", json={"model": "fake"}).json()["ok"] is True
    assert served.http.post("/models/load", json={"path": "/etc/passwd"}).status_code == 404
    assert served.http.post("/models/load", json={}).status_code == 400


def test_completion(served: Served) -> None:
    body = post(served, "/completion", prompt="x", n_predict=3, n_probs=2, return_tokens=True).json()
    assert (body["content"], body["stop"], body["stop_type"], body["truncated"]) == (
        "hel",
        True,
        "limit",
        False,
    )
    assert body["tokens"] == [*b"hel"] and body["tokens_predicted"] == 3 and body["tokens_evaluated"] == 2
    assert [p["id"] for p in body["completion_probabilities"]] == [*b"hel"]
    assert len(body["completion_probabilities"][0]["top_logprobs"]) == 2
    assert body["generation_settings"]["temperature"] == 0 and body["timings"]["predicted_n"] == 3
    body = post(served, "/completion", prompt="stop", stop=["STOP"]).json()
    assert (body["content"], body["stop_type"], body["stopping_word"]) == ("one ", "word", "STOP")
    assert post(served, "/completion", prompt="x", n_predict=-1).json()["stop_type"] == "eos"
    got = frames(post(served, "/completion", prompt="x", stream=True))
    assert [o["stop"] for o in got] == [False] * (len(got) - 1) + [True]
    assert "".join(o["content"] for o in got) == "hello" and "timings" in got[-1]


def test_mixed_prompts(served: Served) -> None:
    t = served.fake.tokenizer
    post(served, "/completion", prompt=["<|im_start|>a", 98, "c"])
    assert served.seen[-1].prompt == [t.bos_id, t.specials["<|im_start|>"], *b"abc"]
    for bad in (["a", "b"], [None], [-1], []):
        assert post(served, "/completion", prompt=bad).status_code == 400, bad
    for name, value in (("lora", [{"id": 0}]), ("post_sampling_probs", True), ("t_max_predict_ms", 5)):
        response = post(served, "/completion", prompt="x", **{name: value})
        assert response.status_code == 400 and response.json()["error"]["param"] == name


def test_infill(served: Served) -> None:
    body = post(served, "/infill", input_prefix="a", input_suffix="b", prompt="c").json()
    assert body["content"] == "gap" and served.prompt() == "<s><PRE>a<SUF>b<MID>c"


def test_tokens(served: Served) -> None:
    t = served.fake.tokenizer
    body = served.http.post("/tokenize", json={"content": "ö<|im_end|>", "with_pieces": True}).json()
    assert [x["piece"] for x in body["tokens"]] == [[0xC3], [0xB6], "<|im_end|>"]
    plain = served.http.post("/tokenize", json={"content": "a", "add_special": True}).json()["tokens"]
    assert plain == [t.bos_id, 97]
    assert served.http.post("/detokenize", json={"tokens": [*"hö".encode()]}).json() == {"content": "hö"}
    for bad in ([-1], [10**9], "x", [1.5]):
        assert served.http.post("/detokenize", json={"tokens": bad}).status_code == 400
    prompt = served.http.post("/apply-template", json={"messages": HI}).json()["prompt"]
    served.post()
    assert prompt == served.prompt()


def test_props_and_slots(served: Served) -> None:
    body = served.http.get("/props").json()
    assert body["total_slots"] == 4 and body["bos_token"] == "<s>" and "tools" in body["chat_template"]
    assert body["default_generation_settings"]["params"]["top_k"] == 40
    rows = served.http.get("/slots").json()
    assert [row["is_processing"] for row in rows] == [False] * 4


# -- skills ----------------------------------------------------------------------------------------


def test_skills_are_loaded_inside(tmp_path: Path) -> None:
    (tmp_path / "pirate").mkdir()
    (tmp_path / "pirate" / "SKILL.md").write_text("---\nname: pirate\ndescription: Talk so.\n---\nSay ARR.\n")
    load = '<tool_call>\n{"name": "load_skill", "arguments": {"name": "pirate"}}\n</tool_call>'
    scripts = {"Say ARR": "Arr!", "hi": load}
    with Served(scripts=scripts, template=TOOLS_CHATML, n_ctx=2048, app={"skills": tmp_path}) as server:
        listed = server.http.get("/v1/skills").json()["skills"]
        assert listed == [{"name": "pirate", "description": "Talk so."}]
        body = server.post().json()
        message = body["choices"][0]["message"]
        assert (message["content"], body["choices"][0]["finish_reason"]) == ("Arr!", "stop")
        assert "tool_calls" not in message and body["usage"]["completion_tokens"] > len(load)
        frames = server.frames()
        assert "".join(f["choices"][0]["delta"].get("content", "") for f in frames) == "Arr!"
        assert not any("load_skill" in json.dumps(f) for f in frames)
        anthropic = server.http.post(
            "/v1/messages", json={"messages": HI, "max_tokens": 500, "temperature": 0}
        ).json()
        assert anthropic["content"] == [{"type": "text", "text": "Arr!"}]
        ollama = {"model": "fake", "messages": HI, "stream": False, "options": {"temperature": 0}}
        assert server.http.post("/api/chat", json=ollama).json()["message"]["content"] == "Arr!"
        both = server.post(n=2).json()["choices"]
        assert [c["message"]["content"] for c in both] == ["Arr!", "Arr!"]
        server.http.post("/v1/completions", json={"prompt": "hi", "temperature": 0})
        assert server.prompt() == "<s>hi"
        server.idle()


def test_generate_tells_times_of_each_piece_where_they_are_asked_for() -> None:
    with Served(script="hello") as served:
        served.fake.executor.delay = 0.01  # each piece on its own
        for asked in (True, False):
            response = served.http.post(
                "/generate",
                json={"prompt": "x", "stream": True, "timings_per_token": asked, "temperature": 0},
            )
            rows = [json.loads(row[6:]) for row in response.text.splitlines() if row.startswith("data: {")]
            noted = [row["timings"]["predicted_n"] for row in rows if "timings" in row]
            assert noted == sorted(noted) and bool(noted) == asked
