"""Where a server's models come from: only from its folders, and what is derived from others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_model import FakeModel
from live_server import LiveServer
from served import CHATML, HI
from tiny_models import write_llama

from ggfw.cli.serve import _Served
from ggfw.errors import GgfwError, ModelNotFound
from ggfw.library import Model
from ggfw.server import create_app
from ggfw.server.confine import Confined
from ggfw.server.entries import Entry
from ggfw.server.errors import Forbidden
from ggfw.server.pool import Pool
from ggfw.server.store import Store

pytest_plugins = ["cli_support"]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models beside one that is none of the server's business."""
    base = tmp_path_factory.mktemp("house")
    (base / "models" / "sub").mkdir(parents=True)
    (base / "secret").mkdir()
    write_llama(base / "models" / "own.gguf")
    write_llama(base / "models" / "sub" / "inner.gguf")
    write_llama(base / "secret" / "secret.gguf")
    os.symlink(base / "secret" / "secret.gguf", base / "models" / "link.gguf")
    os.symlink(base / "models" / "sub" / "inner.gguf", base / "models" / "within.gguf")
    os.symlink(base / "secret", base / "models" / "door")
    return base


@pytest.fixture(scope="module")
def http(house: Path) -> Iterator[httpx.Client]:
    served = _Served(
        (str(house / "models" / "own.gguf"),),
        {"n_parallel": 1, "max_queue": 4, "threads": 1, "ctx": 128},
        {"models_dir": str(house / "models"), "keep_alive": -1.0, "memory": None},
    )
    with (
        LiveServer(create_app(pool=served.pool, store=served.store)) as live,
        httpx.Client(base_url=live.url, timeout=30) as client,
    ):
        yield client
    served.pool.close()


NAMES = [
    "../secret/secret", "../secret/secret.gguf", "sub/../../secret/secret.gguf", "link", "link.gguf", "door/secret",
    "{base}/secret/secret.gguf", "{base}/models/../secret/secret.gguf", "{base}/models/link.gguf",
    "file:../secret/secret.gguf",
    "/etc/passwd", "..", ".", "", "own.gguf/../link.gguf", "%2e%2e/secret/secret", "own\x00.gguf",
]  # fmt: skip

FAMILIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "max_tokens": 1},
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/embeddings": {"input": "x"},
    "/v1/responses": {"input": "x", "max_output_tokens": 1},
    "/v1/responses/input_tokens": {"input": "x"},
    "/v1/messages": {"messages": HI, "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": HI},
    "/api/chat": {"messages": HI, "options": {"num_predict": 1}},
    "/api/generate": {"prompt": "x", "options": {"num_predict": 1}},
    "/api/embed": {"input": "x"},
    "/api/embeddings": {"prompt": "x"},
    "/api/show": {},
    "/generate": {"prompt": "x", "max_tokens": 1},
    "/models/load": {},
    "/completion": {"prompt": "x", "n_predict": 1},
    "/tokenize": {"content": "x"},
    "/detokenize": {"tokens": [5]},
    "/apply-template": {"messages": HI},
}


@pytest.mark.parametrize("path", FAMILIES)
def test_a_model_comes_from_the_folders_only(http: httpx.Client, house: Path, path: str) -> None:
    for name in NAMES:
        given = name.format(base=house)
        response = http.post(path, json={"model": given, **FAMILIES[path]})
        # /api/show and /models/load take an empty name for a missing one.
        allowed = (400, 404) if not given else (404,)
        assert response.status_code in allowed, (given, response.text)
        assert "error" in response.json() and "Traceback" not in response.text
    for name in ("own", "sub/inner"):
        assert http.post(path, json={"model": name, **FAMILIES[path]}).status_code == 200, name


def test_other_names_of_a_model_are_confined_too(http: httpx.Client, house: Path) -> None:
    listed = {row["id"] for row in http.get("/v1/models").json()["data"]}
    assert listed == {"own", "sub/inner"}
    secret = str(house / "secret" / "secret.gguf")
    for name in ("../secret/secret", secret, "link"):
        assert http.get(f"/v1/models/{name}").status_code == 404
        assert http.post("/models/load", json={"path": name}).status_code == 404
        assert http.post("/api/create", json={"model": "mine", "from": name}).status_code == 404
        assert http.post("/api/copy", json={"source": name, "destination": "mine"}).status_code == 404
        assert http.request("DELETE", "/api/delete", json={"model": name}).status_code == 404
        assert http.get("/props", params={"model": name}).status_code == 404
    for name in ("../up", "/etc/x", "a/../../b", ".hidden"):
        created = http.post("/api/create", json={"model": name, "from": "own"})
        assert created.status_code == 400, created.text
        copied = http.post("/api/copy", json={"source": "own", "destination": name})
        assert copied.status_code == 400
    assert (house / "secret" / "secret.gguf").is_file()


def test_looking_at_a_model_does_not_load_it(house: Path) -> None:
    served = _Served(
        (str(house / "models" / "own.gguf"),),
        {"n_parallel": 1, "max_queue": 4, "threads": 1, "ctx": 128},
        {"models_dir": str(house / "models"), "keep_alive": -1.0, "memory": None},
    )
    app = create_app(pool=served.pool, store=served.store)
    with LiveServer(app) as live, httpx.Client(base_url=live.url, timeout=30) as http:
        for verbose in (False, True):
            before = http.post("/api/show", json={"model": "own", "verbose": verbose}).json()
            assert http.get("/api/ps").json()["models"] == []
            assert "completion" in before["capabilities"] and before["details"]["family"] == "llama"
            assert before["model_info"]["llama.context_length"] == 256
            http.post("/models/load", json={"model": "own"})
            after = http.post("/api/show", json={"model": "own", "verbose": verbose}).json()
            for name in ("capabilities", "template", "model_info", "modelfile", "license"):
                assert before[name] == after[name], name
            http.post("/api/generate", json={"model": "own", "keep_alive": 0})
    served.pool.close()


def test_a_file_that_becomes_a_link_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    inside = write_llama(tmp_path / "models" / "a.gguf")
    outside = write_llama(tmp_path / "b.gguf")
    confined = Confined([tmp_path / "models"])
    confined.check(inside)
    inside.unlink()
    with pytest.raises(GgfwError, match="is gone"):
        confined.check(inside)
    os.symlink(outside, inside)
    assert not confined.holds(inside) and not confined.holds(outside)
    with pytest.raises(Forbidden, match="leads out of the folders"):
        confined.check(inside)
    assert Confined([tmp_path / "models"], [outside]).holds(inside), "the user named this file"
    os.symlink(tmp_path / "models" / "x", tmp_path / "models" / "x")
    assert not confined.holds(tmp_path / "models" / "x")


# -- derived models --------------------------------------------------------------------------------

SHOUT = "{% for m in messages %}{{ m.content | upper }}{% endfor %}!"


class Derived:
    """A server with a fake model and a store in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.pool = Pool()
        self.fake = FakeModel("hello", template=CHATML, n_ctx=512)
        self.pool.add(Entry("base", lambda: Model(self.fake)))  # type: ignore[arg-type]
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.store = Store(folder, self.pool, lambda path, **more: self.pool.entries["base"].load())
        app = create_app(pool=self.pool, store=self.store, log=lambda e, f: self.lines.append((e, f)))
        self.live = LiveServer(app)

    def __enter__(self) -> Derived:
        self.live.__enter__()
        self.http = httpx.Client(base_url=self.live.url, timeout=20)
        return self

    def __exit__(self, *error: object) -> None:
        self.http.close()
        self.live.__exit__()
        self.pool.close()

    def prompts(self) -> list[str]:
        segments = [s for batch in self.fake.executor.batches for s in batch if s[2]]
        return [self.fake.tokenizer.decode(tokens, special=True) for tokens, _, _ in segments]


def write(folder: Path, name: str, **preset: Any) -> None:
    (folder / "derived").mkdir(exist_ok=True)
    text = json.dumps({"name": name, "options": {}, **preset})
    (folder / "derived" / f"{name}.json").write_text(text)


def test_a_derived_model_without_its_base_is_left_out_until_it_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path, "orphan", **{"from": "gone"})
    write(tmp_path, "fine", **{"from": "base", "system": "Be brief."})
    (tmp_path / "derived" / "bad.json").write_text("{")
    (tmp_path / "derived" / "odd.json").write_text("[1]")
    with Derived(tmp_path) as server:
        said = [fields["reason"] for event, fields in server.lines if event == "model_left_out"]
        assert len(said) == 3 and any("orphan was made from gone" in text for text in said)
        names = [row["id"] for row in server.http.get("/v1/models").json()["data"]]
        assert names == ["base", "fine"]
        for path, body in FAMILIES.items():
            response = server.http.post(path, json={"model": "Orphan:latest", **body})
            assert response.status_code == 404, (path, response.text)
            assert "orphan was made from gone" in response.text
        answer = server.http.post("/v1/chat/completions", json={"model": "fine", "messages": HI}).json()
        assert answer["choices"][0]["message"]["content"] == "hello"
        server.pool.add(Entry("gone", lambda: Model(FakeModel("back", template=CHATML))))  # type: ignore[arg-type]
        answer = server.http.post("/v1/chat/completions", json={"model": "orphan", "messages": HI}).json()
        assert answer["choices"][0]["message"]["content"] == "back", "its base has come"
    write(tmp_path, "other", **{"from": "nowhere"})
    with Derived(tmp_path) as server:
        gone = server.http.request("DELETE", "/api/delete", json={"model": "other"})
        assert gone.status_code == 200
        with pytest.raises(ModelNotFound, match="there is no model"):
            server.pool.find("other")


def test_a_derived_model_may_come_from_a_path_or_an_everyday_name(tmp_path: Path) -> None:
    from ggfw import catalogue

    known = catalogue.CATALOGUE[0]
    write(tmp_path, "by-path", **{"from": str(tmp_path / "a.gguf")})
    write(tmp_path, "by-name", **{"from": known.name})
    pool = Pool()
    for id, facts in ((Path(known.file).stem, {}), ("a", {"path": str(tmp_path / "a.gguf")})):
        pool.add(Entry(id, lambda: Model(FakeModel("x")), facts=facts))  # type: ignore[arg-type]
    assert Store(tmp_path, pool, lambda path: Model(FakeModel("x"))).warnings == []  # type: ignore[arg-type]
    base = pool.find("by-path").base
    assert base is not None and base.id == "a"


def test_a_derived_model_can_be_the_one_that_is_served(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "plain.gguf")
    write(tmp_path, "pirate", **{"from": str(path), "system": "Arr.", "template": SHOUT})
    served = _Served(
        ("pirate",),
        {"n_parallel": 1, "max_queue": 4, "threads": 1, "ctx": 128},
        {"models_dir": str(tmp_path), "keep_alive": -1.0, "memory": None},
    )
    served.load()
    app = create_app(pool=served.pool, store=served.store)
    with LiveServer(app) as live, httpx.Client(base_url=live.url, timeout=30) as http:
        states = {row["id"]: row["state"] for row in http.get("/models").json()["models"]}
        assert states == {"plain": "loaded", "pirate": "loaded"}
        prompt = http.post("/apply-template", json={"messages": HI}).json()["prompt"]
        assert "ARR." in prompt and prompt.endswith("HI!") and "<|im_start|>" not in prompt
        plain = http.post("/apply-template", json={"messages": HI, "model": "plain"}).json()["prompt"]
        assert "Arr" not in plain and "<|im_start|>" in plain
    served.pool.close()


@pytest.mark.parametrize("how", ["create", "file"])
def test_the_template_of_a_derived_model_is_its_own(tmp_path: Path, how: str) -> None:
    if how == "file":
        write(tmp_path, "loud", **{"from": "base", "template": SHOUT})
    with Derived(tmp_path) as server:
        if how == "create":
            body = {"model": "loud", "from": "base", "template": SHOUT, "stream": False}
            assert server.http.post("/api/create", json=body).status_code == 200
        for path in ("/v1/chat/completions", "/api/chat", "/v1/messages", "/v1/responses", "/generate"):
            server.fake.executor.batches.clear()
            body = dict(FAMILIES[path])
            asked = server.http.post(path, json={"model": "loud", **body})
            assert asked.status_code == 200, asked.text
            first = (body.get("input") or body.get("prompt") or "hi").upper()
            template = server.http.post("/apply-template", json={"model": "loud", "messages": HI}).json()
            assert template["prompt"].endswith("HI!") and "<|im_start|>" not in template["prompt"]
            count = server.http.post("/v1/messages/count_tokens", json={"model": "loud", "messages": HI})
            assert count.json()["input_tokens"] == len("HI!") + 1
            assert not any("<|im_start|>" in prompt for prompt in server.prompts()), (path, first)
        plain = server.http.post("/apply-template", json={"model": "base", "messages": HI}).json()["prompt"]
        assert "<|im_start|>user" in plain, "the other model keeps its own"
        shown = server.http.post("/api/show", json={"model": "loud"}).json()
        assert shown["template"] == SHOUT and f'TEMPLATE """{SHOUT}"""' in shown["modelfile"]
        assert server.http.get("/props", params={"model": "loud"}).json()["chat_template"] == SHOUT
        server.http.post("/api/copy", json={"source": "loud", "destination": "loud2"})
        assert server.http.post("/api/show", json={"model": "loud2"}).json()["template"] == SHOUT
        for bad, why in (
            ("{{ .Prompt }}", "Go"),
            ("{{ if .System }}x{{ end }}", "Go"),
            ("{% if %}", "compiled"),
        ):
            refused = server.http.post("/api/create", json={"model": "x", "from": "base", "template": bad})
            assert (
                refused.status_code == 400 and why in refused.json()["error"] and "template" in refused.text
            )
        assert not server.fake.closed


# -- folders that change while the server runs -------------------------------------------------------


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[tuple[Path, httpx.Client]]:
    """A folder with one model, and a server of it."""
    first = write_llama(tmp_path / "first.gguf")
    served = _Served(
        (str(first),),
        {"n_parallel": 1, "max_queue": 4, "threads": 1, "ctx": 128},
        {"models_dir": str(tmp_path), "keep_alive": -1.0, "memory": None},
    )
    with (
        LiveServer(create_app(pool=served.pool, store=served.store)) as live,
        httpx.Client(base_url=live.url, timeout=30) as client,
    ):
        yield tmp_path, client
    served.pool.close()


def names_of(http: httpx.Client) -> list[set[str]]:
    return [
        {row["id"] for row in http.get("/v1/models").json()["data"]},
        {row["id"] for row in http.get("/models").json()["models"]},
        {row["name"].removesuffix(":latest") for row in http.get("/api/tags").json()["models"]},
    ]


@pytest.mark.parametrize("path", FAMILIES)
def test_a_model_that_comes_while_the_server_runs_is_found(
    changing: tuple[Path, httpx.Client], path: str
) -> None:
    folder, http = changing
    body = {"model": "late", **FAMILIES[path]}
    assert http.post(path, json=body).status_code == 404
    write_llama(folder / "late.gguf")
    assert http.post(path, json=body).status_code == 200
    assert http.post(path, json={**body, "model": "late.gguf"}).status_code == 200


def test_lists_follow_the_folder(changing: tuple[Path, httpx.Client]) -> None:
    folder, http = changing
    assert names_of(http) == [{"first"}] * 3
    (folder / "half.gguf").write_bytes((folder / "first.gguf").read_bytes()[:2000])
    os.symlink("/etc/passwd", folder / "link.gguf")
    late = write_llama(folder / "sub.gguf")
    assert names_of(http) == [{"first", "sub"}] * 3, "and nothing that is broken or leads out"
    assert http.get("/v1/models/sub").status_code == 200
    late.unlink()
    assert http.post("/v1/completions", json={"model": "sub", "prompt": "x"}).status_code == 404
    assert names_of(http) == [{"first"}] * 3
    late = write_llama(folder / "sub.gguf")
    assert http.post("/api/create", json={"model": "mine", "from": "sub"}).status_code == 200
    http.post("/models/load", json={"model": "sub"})
    late.unlink()
    assert names_of(http) == [{"first", "sub", "mine"}] * 3, "what is loaded stays"
    assert http.post("/v1/completions", json={"model": "mine", "prompt": "x"}).status_code == 200
    http.post("/api/generate", json={"model": "sub", "keep_alive": 0})
    assert names_of(http) == [{"first"}] * 3
    gone = http.post("/v1/completions", json={"model": "mine", "prompt": "x"})
    assert gone.status_code == 404 and "mine was made from sub" in gone.text
    write_llama(folder / "sub.gguf")
    again = http.post("/v1/completions", json={"model": "mine", "prompt": "x", "max_tokens": 1})
    assert again.status_code == 200, again.text


def test_the_default_model_is_never_exchanged_for_another(changing: tuple[Path, httpx.Client]) -> None:
    folder, http = changing
    write_llama(folder / "other.gguf")
    (folder / "first.gguf").unlink()
    http.post("/api/generate", json={"model": "first", "keep_alive": 0})
    assert names_of(http) == [{"first", "other"}] * 3
    asked = http.post("/v1/completions", json={"prompt": "x"})
    assert asked.status_code == 404 and "first.gguf is gone" in asked.text
    write_llama(folder / "first.gguf")
    assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200


def test_a_derived_model_that_was_written_beside_the_server_is_found(
    changing: tuple[Path, httpx.Client],
) -> None:
    folder, http = changing
    write(folder, "terse", **{"from": "first", "system": "Be brief."})
    assert names_of(http) == [{"first", "terse"}] * 3
    assert http.post("/api/show", json={"model": "terse"}).json()["system"] == "Be brief."
    write(folder, "terse", **{"from": "first", "system": "Be very brief."})
    http.get("/v1/models")
    assert http.post("/api/show", json={"model": "terse"}).json()["system"] == "Be very brief."
