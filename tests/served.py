"""A fake model behind HTTP, and a client: what the tests of the server begin with."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
from fake_model import FakeModel, wait_until
from live_server import LiveServer

from ggfw.library import Model
from ggfw.server import create_app

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
#: ChatML with tools, as models of the Hermes family have it.
TOOLS_CHATML = (
    "{% if tools %}{{ '<|im_start|>system\nTools: ' + (tools|tojson) + ' Use <tool_call>.<|im_end|>\n' }}"
    "{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '<tool_call>' + (c.function|tojson) + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
#: What such a model writes to call f and g.
TWO_CALLS = (
    '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g", "arguments": {"b": 2}}\n</tool_call>'
)
ONE_CALL = 'Let me see. <tool_call>\n{"name": "f", "arguments": {"city": "Paris"}}\n</tool_call>'


def function(name: str) -> dict[str, Any]:
    """A tool that takes anything, in OpenAI's form."""
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {}}},
    }


HI = [{"role": "user", "content": "hi"}]


class Served:
    """A fake model behind HTTP, and a client."""

    def __init__(self, **model: Any) -> None:
        options = model.pop("app", {})
        self.fake = FakeModel(**{"template": CHATML, **model})
        self.model = Model(self.fake)  # type: ignore[arg-type]
        #: Requests that reached the engine.
        self.seen: list[Any] = []
        queue = self.model.engine.submit_choices

        def submit_choices(requests: Any) -> Any:
            self.seen += requests
            return queue(requests)

        self.model.engine.submit_choices = submit_choices  # type: ignore[method-assign]
        self.lines: list[tuple[str, dict[str, Any]]] = []
        app = create_app(self.model, log=lambda e, f: self.lines.append((e, f)), **options)
        self.state = app.ctx.ggfw
        self.live = LiveServer(app)

    def __enter__(self) -> Served:
        self.live.__enter__()
        self.http = httpx.Client(base_url=self.live.url, timeout=20)
        return self

    def __exit__(self, *error: object) -> None:
        self.http.close()
        self.model.close()
        self.live.__exit__()

    def post(self, **body: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json={"messages": HI, "temperature": 0, **body})

    def frames(self, **body: Any) -> list[Any]:
        """The JSON of all frames; checks the framing on the way."""
        response = self.post(stream=True, **body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.text.endswith("\n\n")
        parts = response.text.split("\n\n")[:-1]
        assert all(p.startswith("data: ") and "\n" not in p for p in parts)
        assert parts[-1] == "data: [DONE]" and parts.count("data: [DONE]") == 1
        return [json.loads(p[6:]) for p in parts[:-1]]

    def prompt(self) -> str:
        """The prompt of the last request."""
        return str(self.fake.tokenizer.decode(self.seen[-1].prompt, special=True))

    def raw(self, path: str, body: Any) -> socket.socket:
        """Send a request and read nothing."""
        data = json.dumps(body).encode()
        sock = socket.create_connection(("127.0.0.1", self.live.port))
        sock.sendall(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
            + f"Content-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        return sock

    def idle(self) -> None:
        wait_until(lambda: not self.model.engine.scheduler and self.fake.cache.n_pages_used() == 0, 3)
