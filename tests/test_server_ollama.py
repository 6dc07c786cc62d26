"""Ollama's interface over real sockets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_model import FakeModel
from live_server import LiveServer
from served import HI, ONE_CALL, TOOLS_CHATML, TWO_CALLS, Served, function

from ggfw.library import Model
from ggfw.server import create_app
from ggfw.server.entries import Entry
from ggfw.server.families.ollama_fields import seconds_of
from ggfw.server.pool import Pool
from ggfw.server.store import Store


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    scripts = {
        "two calls": TWO_CALLS, "one call": ONE_CALL, "think": "<think>\nhm\n</think>\n\n42", "<PRE>": "gap",
        "forever": "x" * 500,
    }  # fmt: skip
    more = {"template": TOOLS_CHATML, "n_ctx": 1024, "pieces": ["<PRE>", "<SUF>", "<MID>"]}
    with Served(script="hello", scripts=scripts, **more) as server:
        yield server


def say(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def chat(served: Served, **body: Any) -> httpx.Response:
    body = {"model": "fake", "messages": HI, "options": {"temperature": 0}, **body}
    return served.http.post("/api/chat", json=body)


def lines(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("application/x-ndjson")
    assert response.text.endswith("\n") and "\n\n" not in response.text
    return [json.loads(text) for text in response.text.splitlines()]


LAST = {
    "done", "done_reason", "total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration",
    "eval_count", "eval_duration",
}  # fmt: skip


def test_streaming_is_the_default(served: Served) -> None:
    got = lines(chat(served))
    assert "".join(o["message"]["content"] for o in got) == "hello"
    assert [o["done"] for o in got] == [False] * (len(got) - 1) + [True]
    assert set(got[-1]) >= LAST and got[-1]["done_reason"] == "stop" and got[-1]["eval_count"] == 6
    whole = chat(served, stream=False).json()
    assert whole["message"] == {"role": "assistant", "content": "hello"} and set(whole) >= LAST
    assert whole["model"] == "fake" and whole["created_at"].endswith("Z")
    assert chat(served, model="FAKE:latest", stream=False).status_code == 200


def test_options(served: Served) -> None:
    body = chat(
        served, messages=say("forever"), stream=False, options={"num_predict": 3, "temperature": 0}
    ).json()
    assert (body["eval_count"], body["done_reason"]) == (3, "length")
    options = {
        "num_predict": -1,
        "top_k": 7,
        "repeat_penalty": 1.5,
        "seed": 5,
        "stop": ["l"],
        "num_thread": 3,
        "nope": 1,
    }
    body = chat(served, stream=False, options=options).json()
    assert body["message"]["content"] == "he"
    params = served.seen[-1].params
    assert (params.top_k, params.penalty_repeat, params.seed) == (7, 1.5, 5)
    response = chat(served, options={"temperature": "hot"})
    assert response.status_code == 400 and "temperature" in response.json()["error"]


def test_num_ctx_limits_the_request(served: Served) -> None:
    response = chat(served, options={"num_ctx": 4096})
    assert response.status_code == 400
    assert "4096" in response.json()["error"] and "1024" in response.json()["error"]
    n = chat(served, stream=False).json()["prompt_eval_count"]
    body = chat(served, stream=False, options={"num_ctx": n + 3, "temperature": 0}).json()
    assert (body["eval_count"], body["done_reason"]) == (3, "length")
    response = chat(served, options={"num_ctx": n})
    assert response.status_code == 400 and response.json()["n_ctx"] == n


def test_thinking_is_its_own_field(served: Served) -> None:
    body = chat(served, messages=say("think"), stream=False).json()
    assert body["message"] == {"role": "assistant", "content": "42", "thinking": "hm"}
    got = lines(chat(served, messages=say("think")))
    assert "".join(o["message"].get("thinking", "") for o in got) == "hm"
    assert chat(served, think="sideways").status_code == 400
    generated = served.http.post(
        "/api/generate", json={"model": "fake", "prompt": "think", "stream": False}
    ).json()
    assert (generated["response"], generated["thinking"]) == ("42", "hm")


def test_calls_arrive_whole_and_as_objects(served: Served) -> None:
    tools = [function("f"), function("g")]
    body = chat(served, messages=say("two calls"), tools=tools, stream=False).json()
    calls = body["message"]["tool_calls"]
    assert [(c["function"]["name"], c["function"]["arguments"]) for c in calls] == [
        ("f", {"a": 1}),
        ("g", {"b": 2}),
    ]
    assert body["done_reason"] == "stop"
    got = lines(chat(served, messages=say("two calls"), tools=tools))
    streamed = [c for o in got for c in o["message"].get("tool_calls", [])]
    assert [
        (c["function"]["index"], c["function"]["name"], c["function"]["arguments"]) for c in streamed
    ] == [
        (0, "f", {"a": 1}),
        (1, "g", {"b": 2}),
    ]
    assert not any("tool_calls" in o["message"] and not o["message"]["tool_calls"] for o in got)


def test_both_interfaces_take_both_forms_of_calls(served: Served) -> None:
    tools = [function("f")]
    native = chat(served, messages=say("one call"), tools=tools, stream=False).json()["message"]
    assert native["tool_calls"][0]["function"]["arguments"] == {"city": "Paris"}
    openai = served.post(messages=say("one call"), tools=tools).json()["choices"][0]
    call = openai["message"]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"} and call["id"]
    assert openai["finish_reason"] == "tool_calls"
    rendered = set()
    for message in (native, openai["message"]):
        result = {"role": "tool", "content": "sunny", "tool_call_id": call["id"]}
        history = [*say("one call"), {k: v for k, v in message.items() if k != "logprobs"}, result]
        for ask in (
            lambda m: chat(served, messages=m, tools=tools),
            lambda m: served.post(messages=m, tools=tools),
        ):
            assert ask(history).status_code == 200
            rendered.add(served.prompt())
    assert len(rendered) == 1 and '"city": "Paris"' in rendered.pop()


def test_tool_fields_of_messages_are_kept(served: Served) -> None:
    history = [
        *say("q"),
        {
            "role": "assistant",
            "thinking": "plan",
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "tool_name": "f", "content": "sunny"},
    ]
    assert chat(served, messages=history, tools=[function("f")]).status_code == 200
    assert '<think>plan</think><tool_call>{"name": "f", "arguments": {"a": 1}}' in served.prompt()
    response = chat(served, messages=[{"role": "user", "content": "x", "images": ["aaaa"]}])
    assert response.status_code == 400 and "images" in response.json()["error"]


def generate(served: Served, **body: Any) -> httpx.Response:
    return served.http.post("/api/generate", json={"model": "fake", "options": {"temperature": 0}, **body})


def test_generate(served: Served) -> None:
    got = lines(generate(served, prompt="x", system="be brief"))
    assert "".join(o["response"] for o in got) == "hello" and set(got[-1]) >= LAST
    assert served.prompt().startswith("<s><|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nx")
    generate(served, prompt="as it is", raw=True)
    assert served.prompt() == "<s>as it is"
    assert generate(served, prompt="a", suffix="b", stream=False).json()["response"] == "gap"
    assert served.prompt() == "<s><PRE>a<SUF>b<MID>"
    for field, value in (("template", "{{ .Prompt }}"), ("images", ["x"])):
        assert generate(served, prompt="x", **{field: value}).status_code == 400


def test_context_continues_an_exchange(served: Served) -> None:
    context = generate(served, prompt="first", stream=False).json()["context"]
    before = served.prompt()
    assert generate(served, prompt="second", context=context, stream=False).status_code == 200
    assert served.prompt().startswith(before + "hello") and "second" in served.prompt()
    assert served.prompt().count("<s>") == 1


def test_context_in_front_of_a_turn_that_begins_with_the_token_of_bos() -> None:
    """Some vocabularies have one token for BOS and for the mark of a turn, and no BOS in front of texts."""
    template = (
        "{% for m in messages %}{{ '<s>' + m.role + '\n' + m.content + '</s>' }}{% endfor %}{{ '<s>a\n' }}"
    )
    with Served(script="hello", template=template, add_bos=False) as served:
        context = generate(served, prompt="first", stream=False).json()["context"]
        assert generate(served, prompt="second", context=context, stream=False).status_code == 200
        assert served.prompt() == "<s>user\nfirst</s><s>a\nhello</s><s>user\nsecond</s><s>a\n"


def test_thinking_is_for_models_that_think(served: Served) -> None:
    """As in Ollama: who asks for it from another one is told so."""
    for think in (False, "none", None, True, "high"):
        assert chat(served, think=think, stream=False).status_code == 200, "its template writes <think>"
    with Served(script="hello") as plain:
        for think, status in (
            (False, 200),
            ("none", 200),
            (None, 200),
            (True, 400),
            ("high", 400),
            ("true", 400),
        ):
            for response in (chat(plain, think=think), generate(plain, prompt="x", think=think)):
                assert response.status_code == status, (think, response.text)
                if status == 400:
                    assert response.json() == {"error": "fake does not support thinking; leave think out"}
        shown = plain.http.post("/api/show", json={"model": "fake"}).json()
        assert "thinking" not in shown["capabilities"]


@pytest.mark.parametrize(
    ("template", "thinks"),
    [
        (
            "{{ '<|start|>user<|message|>' + messages[0].content + '<|end|><|start|>assistant<|channel|>' }}",
            True,
        ),
        ("{{ messages[0].content }} {{ reasoning_effort }}", True),
        ("{{ messages[0].content }}[/THINK] [TOOL_CALLS] [AVAILABLE_TOOLS]", True),
        ("{{ messages[0].content }}[TOOL_CALLS] [AVAILABLE_TOOLS]", False),
    ],
)
def test_who_thinks(template: str, thinks: bool) -> None:
    with Served(script="hello", template=template) as served:
        shown = served.http.post("/api/show", json={"model": "fake"}).json()
        assert ("thinking" in shown["capabilities"]) == thinks


def test_format_is_enforced_or_refused(served: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    body = chat(served, format=schema, stream=False, options={"temperature": 0, "num_predict": 500}).json()
    assert list(json.loads(body["message"]["content"])) == ["a"]
    assert chat(served, format="xml").status_code == 400
    assert chat(served, format={"type": "nope"}).status_code == 400
    assert chat(served, format="", stream=False).json()["message"]["content"] == "hello"


def test_logprobs(served: Served) -> None:
    entries = chat(served, stream=False, logprobs=True, top_logprobs=2).json()["logprobs"]
    assert [e["token"] for e in entries] == list("hello") and len(entries[0]["top_logprobs"]) == 2
    got = lines(chat(served, logprobs=True))
    assert [e["token"] for o in got for e in o.get("logprobs", [])] == list("hello")


def test_embeddings(served: Served) -> None:
    body = served.http.post("/api/embed", json={"model": "fake", "input": ["a", "b"]}).json()
    assert len(body["embeddings"]) == 2 and body["prompt_eval_count"] == 4
    long = {"model": "fake", "input": "y" * 3000}
    assert served.http.post("/api/embed", json=long).status_code == 200
    refused = served.http.post("/api/embed", json={**long, "truncate": False})
    assert refused.status_code == 400 and refused.json()["n_ctx"] == 1024
    one = served.http.post("/api/embeddings", json={"model": "fake", "prompt": "a"}).json()["embedding"]
    assert one == body["embeddings"][0]
    assert served.http.post("/api/embed", json={"model": "fake"}).json()["embeddings"] == []


def test_lists(served: Served) -> None:
    (row,) = served.http.get("/api/tags").json()["models"]
    assert (row["name"], row["model"]) == ("fake:latest", "fake:latest") and len(row["digest"]) == 64
    assert set(row["details"]) >= {"format", "family", "families", "parameter_size", "quantization_level"}
    (loaded,) = served.http.get("/api/ps").json()["models"]
    assert loaded["context_length"] == 1024 and loaded["expires_at"] > "2100"
    assert served.http.get("/api/version").json()["version"].count(".") == 2
    for name in ({"model": "fake"}, {"name": "fake:latest"}):
        body = served.http.post("/api/show", json=name).json()
        assert body["model_info"]["general.architecture"] == "fake" and "tools" in body["template"]
        assert {"completion", "tools", "thinking", "insert"} == set(body["capabilities"])
    root = served.http.get("/")
    assert root.text == "Ollama is running" and served.http.head("/").status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/chat", {}, 400),
        ("/api/chat", {"model": "nope", "messages": HI}, 404),
        ("/api/chat", {"model": "fake", "messages": "hi"}, 400),
        ("/api/chat", {"model": "fake", "messages": [{"role": "robot", "content": "x"}]}, 400),
        ("/api/chat", {"model": "fake", "messages": HI, "stream": "yes"}, 400),
        ("/api/generate", {"model": "fake", "prompt": 5}, 400),
        ("/api/generate", {"model": "fake", "prompt": "x", "context": ["a"]}, 400),
        ("/api/generate", {"model": "fake", "prompt": "x", "context": [10**9]}, 400),
        ("/api/embed", {"model": "fake", "input": [None]}, 400),
        ("/api/show", {}, 400),
        ("/api/show", {"model": "nope"}, 404),
        ("/api/pull", {"model": "nope"}, 400),
        ("/api/create", {"model": "x", "from": "fake"}, 400),
        ("/api/nowhere", {}, 404),
    ],
)
def test_mistakes_are_one_sentence(served: Served, path: str, body: dict[str, Any], status: int) -> None:
    response = served.http.post(path, json=body)
    if path == "/api/pull":  # a stream has begun
        assert "--models-dir" in json.loads(response.text.splitlines()[-1])["error"]
        return
    assert response.status_code == status, response.text
    assert isinstance(response.json()["error"], str) and response.json()["error"]


# -- keep_alive, with a clock of our own -----------------------------------------------------------


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Pooled:
    """A server whose model is loaded on demand."""

    def __init__(self, folder: Path | None = None) -> None:
        self.clock = Clock()
        self.pool = Pool(keep_alive=300, clock=self.clock)
        self.made: list[FakeModel] = []
        self.pool.add(Entry("fake", self.load))
        store = Store(folder, self.pool, lambda path: self.load()) if folder else None
        self.live = LiveServer(create_app(pool=self.pool, store=store))

    def load(self) -> Model:
        self.made.append(FakeModel("hello", template=TOOLS_CHATML, n_ctx=512))
        return Model(self.made[-1])  # type: ignore[arg-type]

    def __enter__(self) -> Pooled:
        self.live.__enter__()
        self.http = httpx.Client(base_url=self.live.url, timeout=20)
        return self

    def __exit__(self, *error: object) -> None:
        self.http.close()
        self.live.__exit__()
        self.pool.close()

    def ps(self) -> list[Any]:
        return self.http.get("/api/ps").json()["models"]

    def generate(self, **body: Any) -> Any:
        return self.http.post("/api/generate", json={"model": "fake", "stream": False, **body})

    def expires_in(self) -> float:
        (entry,) = self.pool.loaded()
        return float("inf") if entry.expires is None else entry.expires - self.clock.now


def test_keep_alive_and_empty_requests() -> None:
    with Pooled() as server:
        assert server.ps() == []
        body = server.generate().json()
        assert (body["done"], body["response"], body["done_reason"]) == (True, "", "load")
        assert len(server.ps()) == 1 and server.expires_in() == 300
        for given, seconds in (
            ("5m", 300),
            (120, 120),
            ("1h30m", 5400),
            ("-1m", float("inf")),
            (-1, float("inf")),
        ):
            assert server.generate(keep_alive=given).json()["done_reason"] == "load"
            assert server.expires_in() == seconds
        assert server.ps()[0]["expires_at"] > "2060"
        assert server.generate(keep_alive="abc").status_code == 400
        body = server.generate(keep_alive=0).json()
        assert (body["done_reason"], server.ps()) == ("unload", [])
        chat = server.http.post("/api/chat", json={"model": "fake", "messages": [], "stream": False}).json()
        assert chat["done_reason"] == "load" and chat["message"]["content"] == "" and len(server.ps()) == 1
        chat = server.http.post(
            "/api/chat", json={"model": "fake", "messages": [], "keep_alive": 0, "stream": False}
        )
        assert chat.json()["done_reason"] == "unload" and server.ps() == []
        assert server.generate(prompt="x", keep_alive=60).json()["response"] == "hello"
        server.clock.now += 59
        assert len(server.ps()) == 1
        server.clock.now += 2
        assert server.ps() == []
        assert server.generate(prompt="x", keep_alive=0).json()["response"] == "hello" and server.ps() == []
    assert all(model.closed for model in server.made)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None),
        ("5m", 300),
        ("1.5s", 1.5),
        ("100ms", 0.1),
        ("0", 0),
        (0, 0),
        ("-1", -1),
        ("-1m", -1),
        (7, 7),
    ],
)
def test_durations(given: Any, seconds: Any) -> None:
    assert seconds_of(given) == (pytest.approx(seconds) if seconds is not None else None)


# -- the store -------------------------------------------------------------------------------------


def test_create_copy_and_delete(tmp_path: Path) -> None:
    with Pooled(tmp_path) as server:
        body = {
            "model": "pirate",
            "from": "fake",
            "system": "Arr.",
            "parameters": {"num_predict": 2, "temperature": 0},
        }
        status = [
            json.loads(t)["status"] for t in server.http.post("/api/create", json=body).text.splitlines()
        ]
        assert status[-1] == "success"
        answer = server.http.post(
            "/api/chat", json={"model": "pirate", "messages": HI, "stream": False}
        ).json()
        assert answer["message"]["content"] == "he" and answer["done_reason"] == "length"
        prompt = server.made[-1].tokenizer.decode(server.made[-1].executor.batches[0][0][0], special=True)
        assert "system\nArr." in prompt
        assert (
            server.http.post("/api/copy", json={"source": "pirate", "destination": "sailor"}).status_code
            == 200
        )
        names = [row["name"] for row in server.http.get("/api/tags").json()["models"]]
        assert names == ["fake:latest", "pirate:latest", "sailor:latest"]
        shown = server.http.post("/api/show", json={"model": "sailor"}).json()
        assert shown["system"] == "Arr." and "temperature" in shown["parameters"]
        assert server.http.request("DELETE", "/api/delete", json={"model": "pirate"}).status_code == 200
        assert server.http.request("DELETE", "/api/delete", json={"model": "pirate"}).status_code == 404
        assert server.http.request("DELETE", "/api/delete", json={"model": "fake"}).status_code == 409
        for name in ("../up", "/etc/x", ".hidden", "a//b", "x" * 300, "fake"):
            response = server.http.post("/api/create", json={"model": name, "from": "fake"})
            assert response.status_code in (400, 409), name
    again = Pooled(tmp_path)  # what was made is there after a restart
    assert "sailor" in again.pool.entries
    empty = Pool()
    assert (
        "sailor" not in empty.entries and len(Store(tmp_path, empty, lambda path: again.load()).warnings) == 1
    )


def test_blobs_leave_the_disk_some_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the client says how much it sends or not."""
    monkeypatch.setattr("ggfw.server.store.RESERVE", 1 << 60)
    data = b"GGUF" + bytes(100_000)
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    with Pooled(tmp_path) as server:
        for content in (data, iter([data[:50], data[50:]])):
            response = server.http.post(f"/api/blobs/{digest}", content=content)
            assert response.status_code == 507 and "kept for others" in response.json()["error"]
        assert not list((tmp_path / "blobs").iterdir())


def test_blobs(tmp_path: Path) -> None:
    with Pooled(tmp_path) as server:
        data = b"GGUF" + bytes(100_000)
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        assert server.http.head(f"/api/blobs/{digest}").status_code == 404
        wrong = server.http.post(f"/api/blobs/sha256:{'0' * 64}", content=data)
        assert wrong.status_code == 400 and not list((tmp_path / "blobs").iterdir())
        assert server.http.post(f"/api/blobs/{digest}", content=data).status_code == 201
        assert server.http.head(f"/api/blobs/{digest}").status_code == 200
        assert server.http.post("/api/blobs/nonsense", content=data).status_code == 400
        made = server.http.post("/api/create", json={"model": "up", "files": {"a.gguf": digest}})
        assert made.text.endswith('{"status":"success"}\n')
        assert server.http.post("/api/chat", json={"model": "up", "messages": HI}).status_code == 200
        missing = {"model": "x", "files": {"a.gguf": f"sha256:{'1' * 64}"}}
        assert server.http.post("/api/create", json=missing).status_code == 404
    assert "up" in Pooled(tmp_path).pool.entries


def test_pull_tells_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Pooled(tmp_path) as server:

        def fetch(self: Store, name: str, progress: Any) -> None:
            progress("fetching", 5, 10)
            progress("fetching", 10, 10)

        monkeypatch.setattr(Store, "pull", fetch)
        got = lines(server.http.post("/api/pull", json={"model": "new"}))
        assert got[0] == {"status": "pulling manifest"} and got[-1] == {"status": "success"}
        parts = [o for o in got if "digest" in o]
        assert parts and parts[-1]["completed"] == parts[-1]["total"] == 10
        assert lines(server.http.post("/api/pull", json={"model": "fake"}))[-1] == {"status": "success"}
        assert server.http.post("/api/pull", json={"model": "x", "stream": False}).json() == {
            "status": "success"
        }


def test_names_that_cannot_be_fetched(tmp_path: Path) -> None:
    with Pooled(tmp_path) as server:
        for name in ("nope", "file:/etc/passwd", "../x"):
            got = lines(server.http.post("/api/pull", json={"model": name}))
            assert "cannot be fetched" in got[-1]["error"]
