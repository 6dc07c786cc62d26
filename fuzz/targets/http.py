"""Bodies of every family of the HTTP interface, sent to a server process with a tiny model."""

from __future__ import annotations

import http.client
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from fuzz.choices import Choices, spoiled
from fuzz.target import Target

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from server_process import ServerProcess, write_model

_FIELDS = (
    "messages", "prompt", "input", "model", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p",  # noqa: E501
    "stop", "stream", "stream_options", "n", "logprobs", "top_logprobs", "logit_bias", "seed", "tools", "tool_choice",
    "response_format", "grammar", "json_schema", "system", "suffix", "echo", "best_of", "encoding_format", "dimensions",
    "samplers", "dry_multiplier", "dry_sequence_breakers", "mirostat", "xtc_probability", "repeat_penalty", "min_tokens",  # noqa: E501
    "ignore_eos", "chat_template_kwargs", "enable_thinking", "reasoning_effort", "reasoning_budget", "thinking", "metadata",  # noqa: E501
    "stop_sequences", "parallel_tool_calls", "return_progress", "timings_per_token", "cache_prompt", "input_prefix",
    "input_suffix", "options", "format", "keep_alive", "raw", "template", "images", "content", "tokens", "with_pieces",
    "add_special", "query", "documents", "top_n", "instructions", "previous_response_id", "store", "guided_regex",
    "guided_choice", "guided_json", "user", "continue_final_message", "add_generation_prompt", "id_slot", "num_ctx",
)  # fmt: skip
_PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/messages/count_tokens",
    "/v1/responses", "/v1/models", "/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show",
    "/completion", "/infill", "/tokenize", "/detokenize", "/apply-template", "/rerank", "/v1/rerank", "/embedding",
    "/props", "/slots", "/metrics", "/health", "/api/tags", "/api/ps",
)  # fmt: skip


def _value(c: Choices, field: str) -> Any:
    if field == "messages" or (field in ("input", "prompt") and c.chance(30)):
        return [
            {
                "role": c.pick(("user", "assistant", "system", "tool", "developer", "x")),
                "content": c.text(8) if c.chance(70) else c.json(2),
                **({c.text(4): c.json(1)} if c.chance(10) else {}),
                **(
                    {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": c.json(1)}}]}
                    if c.chance(10)
                    else {}
                ),
            }
            for _ in range(c.below(4))
        ]
    if field in ("prompt", "input", "content", "system", "query") and c.chance(70):
        return c.text(12)
    if field == "tools" and c.chance(70):
        return [
            {"type": "function", "function": {"name": c.text(4), "parameters": c.json(3)}}
            for _ in range(c.below(3))
        ]
    if field == "response_format":
        return {
            "type": c.pick(("json_object", "json_schema", "text", "x")),
            "json_schema": {"schema": c.json(3)},
        }
    return c.pick((c.edge(), -1, 0, 1, 0.5, True, None, c.text(5), [c.text(3)], c.json(3)))


def target() -> Target:
    """See the module."""
    folder = Path(tempfile.mkdtemp(prefix="ggfw-fuzz-"))
    server = ServerProcess(
        write_model(folder / "m.gguf", n_ctx=128, n_vocab=500), "--parallel", "2", "--max-queue", "200"
    )
    server.__enter__()
    idle = server.resident()

    def send(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def run(data: bytes) -> None:
        c = Choices(data)
        fields: dict[str, Any] = {
            "max_tokens": 2,
            "messages": [{"role": "user", "content": "a"}],
            "prompt": "a",
        }
        for _ in range(c.below(6)):
            name = c.pick(_FIELDS)
            fields[name] = _value(c, name)
        body = json.dumps(fields).encode()
        if c.chance(15):
            body = spoiled(c, body)
        status, answer = send(c.pick(("POST",) * 7 + ("GET",)), c.pick(_PATHS), body)
        assert status != 500 and status < 504, (status, answer[:300], body[:2000])
        if status >= 400:
            assert json.loads(answer).get("error"), answer[:300]
        assert b"Traceback" not in answer, answer[:500]
        assert server.process.poll() is None, "the server died"
        assert server.resident() - idle < 512 << 20, "the server grows"

    seeds = [bytes([n]) + bytes(range(0, 250, n + 1)) for n in range(30)]
    return Target(run, seeds, close=lambda: server.__exit__())
