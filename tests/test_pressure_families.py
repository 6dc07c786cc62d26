"""Expensive requests in every family, and bombs of regular expressions and Unicode: the bounds of test_pressure.

Any status but 5xx is right; what it costs is bounded, and the next request goes well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from server_process import LINUX, ServerProcess
from test_pressure import BYTES, CPU_SECONDS, function, nested, warm_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LINUX, reason="reads what a process costs from /proc"),
]

HI = [{"role": "user", "content": "hi"}]
WORDS = "word " * 200_000
CHAT = "/v1/chat/completions"

#: Expressions that are small and mean much.
REGEXES = {
    "repeated repetitions": "((a{0,1000}){0,1000}){0,1000}",
    "nested stars": "((((a*)*)*)*)*b",
    "optional ones": "(a?){500}a{500}",
    "two ways": "(x+x+)+y",
    "letters": r"\p{L}{3000}",
    "many words": "|".join(f"word{i}" for i in range(20_000)),
    "deep": "(" * 20_000 + "a" + ")" * 20_000,
    "bounded dots": "(.{0,300}x.{0,300}y){0,300}",
    "any of all": "[^a]{60000}",
    "intersections": "((.*a.*)&(.*b.*)&(.*c.*)&(.*d.*)&(.*e.*)&(.*f.*)){50}",
    "complement": "~((.*a.{200})|(.*b.{200}))",
    "look-behind": "(?<=" + "a" * 5000 + ")b",
    "1 MB": "a" * 1_000_000,
    "half a MB": "a" * 524_000,
    "classes": "[" + "".join(chr(c) for c in range(0x4E00, 0x9000, 2)) + "]{200}",
}

#: Text at which case folding, normalising, cutting and counting go wrong.
UNICODE = {
    "letters that grow eighteenfold": "\ufdfa" * 60_000,
    "letters that case changes grow": "\u0390\ufb03\u1e9e\u0130" * 20_000,
    "flags": "\U0001f1e6" * 60_000,
    "families": "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 12_000,
    "hangul parts": "\u1100\u1161\u11a8" * 25_000,
    "noncharacters": "\ufffe\uffff\U0001ffff\U0010ffff" * 12_000,
    "private use": "\ue000\uf8ff\U000f0000" * 20_000,
    "spaces of all kinds": "\u2000\u2003\u3000\u00a0\u1680\u205f" * 12_000,
    "line ends of all kinds": "\r\n\x0b\x0c\x85\u2028\u2029" * 10_000,
    "nulls": "\0" * 60_000,
    "marks of one letter": "a" + "\u0300\u0301\u0302" * 30_000,
    "tags": "\U000e0041\U000e007f" * 20_000,
    "digits of all kinds": "\u0663\u0967\uff11\U0001d7d8" * 15_000,
    "apostrophes": "'s'S\u2019\u017f" * 20_000,
}

ASKED: dict[str, tuple[str, Any]] = {
    "regex in vLLM's form": (CHAT, {"messages": HI, "structured_outputs": {"regex": REGEXES["optional ones"]}}),
    "choices": (CHAT, {"messages": HI, "guided_choice": [f"choice {i}" for i in range(50_000)]}),
    "pattern in a schema": (
        CHAT,
        {
            "messages": HI,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "string", "pattern": REGEXES["repeated repetitions"]}},
            },
        },
    ),
    "messages: system of 1 MB": ("/v1/messages", {"messages": HI, "max_tokens": 2, "system": WORDS}),
    "messages: 2,000 tools": (
        "/v1/messages",
        {"messages": HI, "max_tokens": 2, "tools": [
            {"name": f"f{i}", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
            for i in range(2000)
        ]},
    ),
    "messages: 9,000 stops": (
        "/v1/messages", {"messages": HI, "max_tokens": 2, "stop_sequences": [f"s{i}" for i in range(9000)]},
    ),
    "responses: input of 1 MB": ("/v1/responses", {"input": WORDS, "max_output_tokens": 2}),
    "responses: 10,000 items": (
        "/v1/responses", {"input": [{"role": "user", "content": "a"}] * 10_000, "max_output_tokens": 2},
    ),
    "responses: 2,000 tools": (
        "/v1/responses",
        {"input": "a", "max_output_tokens": 2, "tools": [
            {"type": "function", **function(i)["function"]} for i in range(2000)
        ]},
    ),
    "completions: 100,000 prompts": ("/v1/completions", {"prompt": ["a"] * 100_000, "max_tokens": 1}),
    "completions: 200,000 ids": ("/v1/completions", {"prompt": [5] * 200_000, "max_tokens": 1}),
    "completions: a million answers": ("/v1/completions", {"prompt": "a", "n": 10**6, "best_of": 10**6}),
    "completions: logprobs of all": ("/v1/completions", {"prompt": "a", "max_tokens": 4, "logprobs": 32_000}),
    "llama: prompt of 1 MB": ("/completion", {"prompt": WORDS, "n_predict": 2}),
    "llama: probabilities of all": ("/completion", {"prompt": "a", "n_predict": 4, "n_probs": 32_000}),
    "llama: pieces of 3 MB": ("/tokenize", {"content": "word " * 600_000, "with_pieces": True}),
    "llama: pieces of half a MB": ("/tokenize", {"content": "word " * 104_000, "with_pieces": True}),
    "llama: a word of 3 MB": ("/tokenize", {"content": "q" * 3_000_000}),
    "llama: a word of half a MB": ("/tokenize", {"content": "q" * 520_000}),
    "llama: pieces of marks": ("/tokenize", {"content": "\u0301" * 300_000, "with_pieces": True}),
    "llama: 250,000 ids": ("/detokenize", {"tokens": [7] * 250_000}),
    "llama: template of 1 MB": ("/apply-template", {"messages": [{"role": "user", "content": WORDS}]}),
    "ollama: chat of 1 MB": ("/api/chat", {"messages": [{"role": "user", "content": WORDS}], "stream": False}),
    "ollama: template bomb": (
        "/api/generate",
        {"prompt": "a", "stream": False, "template": "{{ range .X }}" * 5000, "options": {"num_predict": 1}},
    ),
    "ollama: schema": (
        "/api/chat", {"messages": HI, "stream": False, "format": nested(90), "options": {"num_predict": 1}},
    ),
    "ollama: huge options": (
        "/api/generate",
        {"prompt": "a", "stream": False, "options": {"num_ctx": 10**12, "num_predict": 2, "num_batch": 10**9}},
    ),
    "embeddings: 100,000 inputs": ("/v1/embeddings", {"input": ["a"] * 100_000}),
    "embeddings: 1 MB": ("/v1/embeddings", {"input": WORDS}),
    "embed: 1 MB": ("/api/embed", {"input": WORDS}),
    "count tokens of 1 MB": ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": WORDS}]}),
    **{f"regex: {name}": (CHAT, {"messages": HI, "guided_regex": regex}) for name, regex in REGEXES.items()},
    **{f"text: {name}": (CHAT, {"messages": [{"role": "user", "content": text}]}) for name, text in UNICODE.items()},
    **{
        f"name: {name}": (CHAT, {"messages": HI, "tools": [
            {"type": "function", "function": {"name": text[:2000], "parameters": {"type": "object"}}}
        ], "stop": [text[:2000]], "user": text})
        for name, text in UNICODE.items()
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with warm_server(tmp_path_factory.mktemp("model")) as process:
        model = process.http.get("/v1/models").json()["data"][0]["id"]
        process.http.post("/v1/embeddings", json={"input": "a"})
        process.http.post("/api/chat", json={"model": model, "messages": HI, "options": {"num_predict": 1}})
        yield process


@pytest.mark.parametrize("name", list(ASKED))
def test_expensive_requests(server: ServerProcess, name: str) -> None:
    path, fields = ASKED[name]
    body = {"max_tokens": 2, **fields} if path == CHAT else dict(fields)
    if path.startswith("/api/"):
        body["model"] = server.http.get("/v1/models").json()["data"][0]["id"]
    server.forget_peak()
    cpu, memory = server.cpu(), server.resident()
    answer = server.http.post(path, content=json.dumps(body).encode())
    spent, grown = server.cpu() - cpu, server.peak() - memory
    assert answer.status_code < 500 and answer.status_code != 404, answer.text[:500]
    assert "Traceback" not in answer.text
    assert spent <= CPU_SECONDS, f"{spent:.1f} s of CPU (status {answer.status_code})"
    assert grown <= BYTES, f"{grown >> 20} MiB (status {answer.status_code})"
    server.alive()
