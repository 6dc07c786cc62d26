"""What the clients of the soak test send: requests of all families, and every way of being a bad client.

Nothing but the standard library. Each act is a coroutine that opens connections of its own, does one thing, and says
what came of it; whatever a server may answer to it without being at fault is decided here, in `Outcome.fault`.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother"
).split()
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"enum": [1, 2, 3]}},
            "required": ["city", "days"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
#: Seconds that one act may take before it counts as stuck.
PATIENCE = 900.0


@dataclass(frozen=True)
class Outcome:
    """What came of an act.

    Args:
        act: its name.
        status: of the response; 0: the connection was closed without one, or left before.
        wanted: statuses that are right; empty: any but 5xx.
        body: the beginning of the response's body.
        trouble: what was wrong with a response whose status was right.
        left: whether the client went before the end.
    """

    act: str
    status: int
    wanted: tuple[int, ...] = ()
    body: str = ""
    trouble: str = ""
    left: bool = False

    @property
    def fault(self) -> str:
        """Why the server is to blame, or nothing. A full queue (429) is never its fault."""
        if self.trouble:
            return self.trouble
        if self.status >= 500:
            return f"status {self.status}: {self.body[:300]}"
        if self.left or self.status == 429:
            return ""
        if self.wanted and self.status not in self.wanted:
            return f"status {self.status} where {self.wanted} was right: {self.body[:300]}"
        return ""


class Visitor:
    """One client; acts are its methods.

    Args:
        host, port: of the server.
        context: positions a request may have there.
        seed: of everything it decides.
    """

    def __init__(self, host: str, port: int, context: int, seed: int) -> None:
        self.host, self.port, self.context = host, port, context
        self.rng = random.Random(seed)

    # -- what is said ---------------------------------------------------------------------------------------------

    def words(self, low: int, high: int) -> str:
        """Random words; short ones often repeat, so that prefixes are found."""
        n = self.rng.randint(low, high)
        rng = self.rng if self.rng.random() < 0.7 else random.Random(n)
        return " ".join(rng.choice(WORDS) for _ in range(n))

    def ids(self, n: int) -> list[int]:
        """Random token ids."""
        return [self.rng.randrange(1000, 40000) for _ in range(n)]

    def question(self) -> dict[str, Any]:
        """A random request of a random family: ``path``, ``body``, and how its stream ends."""
        rng, new, stream = self.rng, self.rng.randint(1, 60), self.rng.random() < 0.6
        text = self.words(2, 120)
        talk = [{"role": "user", "content": text}]
        temperature = rng.choice([0, 0.7, 1.5])
        plain = {"max_tokens": new, "temperature": temperature, "stream": stream}
        kind = rng.randrange(13)
        chat = "/v1/chat/completions"
        if kind == 0:
            return {"path": chat, "body": {"messages": talk, **plain}, "end": "data: [DONE]"}
        if kind == 1:
            more = {"n": 2, "logprobs": True, "top_logprobs": 2, "stream_options": {"include_usage": True}}
            return {"path": chat, "body": {"messages": talk, **plain, **more}, "end": "data: [DONE]"}
        if kind == 2:
            more = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 120}
            return {"path": chat, "body": {"messages": talk, **plain, **more}, "end": "data: [DONE]"}
        if kind == 3:
            form = {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA, "strict": True}}
            more = {"response_format": form, "max_tokens": 80}
            return {"path": chat, "body": {"messages": talk, **plain, **more}, "end": "data: [DONE]"}
        if kind == 4:
            more = {"return_progress": True, "timings_per_token": True, "stop": ["time", "\n\n"]}
            return {"path": chat, "body": {"messages": talk, **plain, **more}, "end": "data: [DONE]"}
        if kind == 5:
            prompts = [text, self.words(1, 20)]
            return {"path": "/v1/completions", "body": {"prompt": prompts, **plain}, "end": "data: [DONE]"}
        if kind == 6:
            body = {"messages": talk, "max_tokens": new, "stream": stream, "system": self.words(1, 30)}
            return {"path": "/v1/messages", "body": body, "end": '"type":"message_stop"'}
        if kind == 7:
            body = {"input": text, "max_output_tokens": new, "stream": stream, "instructions": "Be brief."}
            return {"path": "/v1/responses", "body": body, "end": '"type":"response.'}
        if kind == 8:
            body = {"model": "*", "messages": talk, "options": {"num_predict": new}, "stream": stream}
            return {"path": "/api/chat", "body": body, "end": '"done":true'}
        if kind == 9:
            body = {
                "model": "*",
                "prompt": text,
                "options": {"num_predict": new, "top_k": 5},
                "stream": stream,
                "format": "json",
            }
            return {"path": "/api/generate", "body": body, "end": '"done":true'}
        if kind == 10:
            body = {"prompt": text, "n_predict": new, "stream": stream, "grammar": 'root ::= [a-z ]+ "."'}
            return {"path": "/completion", "body": body, "end": '"stop":true'}
        if kind == 11:
            return {"path": "/v1/embeddings", "body": {"input": [text, self.words(1, 9)]}, "end": ""}
        return {"path": "/api/embed", "body": {"model": "*", "input": text}, "end": ""}

    def name_model(self, body: dict[str, Any], model: str) -> dict[str, Any]:
        """Families that need a model's name get it."""
        return {**body, "model": model} if body.get("model") == "*" else body

    # -- acts -----------------------------------------------------------------------------------------------------

    model = ""

    async def ask(self) -> Outcome:
        """Ask and read the answer to its end."""
        said = self.question()
        body = self.name_model(said["body"], self.model)
        status, text = await self.exchange("POST", said["path"], json.dumps(body).encode())
        name = f"ask {said['path']}"
        if status == 200 and body.get("stream", False):
            if said["end"] not in text:
                return Outcome(name, status, trouble=f"the stream has no {said['end']}: …{text[-200:]!r}")
            if '"error":{' in text or '"error":"' in text:
                return Outcome(name, status, trouble=f"an error in the stream: …{text[-300:]!r}")
        elif status == 200:
            try:
                json.loads(text)
            except ValueError:
                return Outcome(name, status, trouble=f"no JSON: {text[:200]!r}")
        return Outcome(name, status, (200,), text[:300])

    async def read_long(self) -> Outcome:
        """A prompt that fills most of the context."""
        n = self.rng.randint(self.context // 2, self.context - 20)
        body = {"prompt": self.ids(n), "max_tokens": 8, "stream": self.rng.random() < 0.5}
        status, text = await self.exchange("POST", "/v1/completions", json.dumps(body).encode())
        return Outcome("long prompt", status, (200,), text[:300])

    async def read_too_long(self) -> Outcome:
        """A prompt that does not fit."""
        body = {"prompt": self.ids(self.context + self.rng.randint(0, 3000)), "max_tokens": 8}
        status, text = await self.exchange("POST", "/v1/completions", json.dumps(body).encode())
        return Outcome("too long prompt", status, (400,), text[:300])

    async def leave(self) -> Outcome:
        """Close the connection somewhere between the first byte of the request and the last of the answer."""
        if self.rng.random() < 0.4:
            path = "/v1/completions"
            n = self.rng.randint(self.context // 4, self.context - 20)
            body: dict[str, Any] = {"prompt": self.ids(n), "max_tokens": 200, "stream": True}
        else:
            said = self.question()
            path, body = said["path"], self.name_model(said["body"], self.model)
        data = self.head("POST", path, json.dumps(body).encode())
        reader, writer = await asyncio.open_connection(self.host, self.port)
        name = f"leave {path}"
        try:
            phase = self.rng.randrange(4)
            if phase == 0:  # in the middle of the request
                writer.write(data[: self.rng.randrange(1, len(data))])
                await writer.drain()
                return Outcome(name, 0, left=True)
            writer.write(data)
            await writer.drain()
            if phase == 1:  # in the queue, or while the prompt is read
                await asyncio.sleep(self.rng.random() * 0.5)
                return Outcome(name, 0, left=True)
            line = await asyncio.wait_for(reader.readline(), PATIENCE)
            if phase == 2:  # at the first bytes
                return Outcome(name, status_of(line), left=True)
            for _ in range(self.rng.randint(1, 30)):
                if not await asyncio.wait_for(reader.readline(), PATIENCE):
                    break
            return Outcome(name, status_of(line), left=True)
        except ConnectionError:
            return Outcome(name, 0, left=True)
        finally:
            if self.rng.random() < 0.5:
                writer.transport.abort()  # a reset instead of an orderly end
            await close(writer)

    async def dawdle(self) -> Outcome:
        """Read a stream in small bites with pauses, from a small window."""
        body = {
            "prompt": self.words(2, 20),
            "max_tokens": 200,
            "stream": True,
            "ignore_eos": True,
            "logprobs": 3,
        }
        data = self.head("POST", "/v1/completions", json.dumps(body).encode())
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=512)
        try:
            writer.write(data)
            await writer.drain()
            got = b""
            while piece := await asyncio.wait_for(reader.read(400), PATIENCE):
                got += piece
                await asyncio.sleep(0.002 if self.rng.random() < 0.95 else 0.5)
            status = status_of(got)
            trouble = "" if status != 200 or b"data: [DONE]" in got else f"cut off: {got[-200:]!r}"
            return Outcome("slow reader", status, (200,), got[-200:].decode(errors="replace"), trouble)
        finally:
            await close(writer)

    async def mangle(self) -> Outcome:
        """A body that is wrong: it must be refused as the client's mistake."""
        rng, chat = self.rng, "/v1/chat/completions"
        talk = [{"role": "user", "content": "Hi"}]
        bad: list[tuple[str, bytes]] = [
            (chat, b""),
            (chat, b'{"messages": ['),
            (chat, b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}'),
            (chat, b"[" * 200_000),
            (chat, json.dumps({"messages": "Hi"}).encode()),
            (chat, json.dumps({"messages": talk, "temperature": "hot"}).encode()),
            (chat, json.dumps({"messages": talk, "top_p": 7}).encode()),
            (chat, json.dumps({"messages": talk, "n": -1}).encode()),
            (chat, json.dumps({"messages": talk, "max_tokens": 1e300}).encode()),
            (chat, json.dumps({"messages": talk, "model": "no/such:model"}).encode()),
            (chat, json.dumps({"messages": talk, "grammar": "root ::= ("}).encode()),
            (chat, json.dumps({"messages": talk, "tools": [{"type": "function"}]}).encode()),
            (chat, json.dumps({"messages": [{"role": "user", "content": {"a": 1}}]}).encode()),
            (chat, json.dumps({"messages": talk, "logit_bias": {"99999999": 1}}).encode()),
            (
                chat,
                json.dumps(
                    {
                        "messages": talk,
                        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}},
                    }
                ).encode(),
            ),
            ("/v1/completions", json.dumps({"prompt": [-1, 2]}).encode()),
            ("/v1/completions", json.dumps({"prompt": [10**12]}).encode()),
            ("/v1/completions", json.dumps({"prompt": {}}).encode()),
            ("/v1/embeddings", json.dumps({"input": None}).encode()),
            ("/v1/messages", json.dumps({"messages": talk, "max_tokens": "many"}).encode()),
            ("/v1/responses", json.dumps({"input": [{"type": "message"}], "stream": True}).encode()),
            ("/api/chat", json.dumps({"model": 7, "messages": talk}).encode()),
            ("/api/generate", json.dumps({"model": self.model, "options": [1]}).encode()),
            ("/api/show", json.dumps({"model": "../../etc/passwd"}).encode()),
            ("/tokenize", json.dumps({"content": [[[]]]}).encode()),
            ("/detokenize", json.dumps({"tokens": [1.5, "a"]}).encode()),
            ("/no/such/path", b"{}"),
        ]
        path, data = rng.choice(bad)
        status, text = await self.exchange("POST", path, data)
        return Outcome(f"malformed {path}", status, (400, 404, 405, 413, 422), text[:300])

    async def babble(self) -> Outcome:
        """Bytes that are no HTTP, or end early."""
        rng = self.rng
        data = rng.choice(
            [
                rng.randbytes(rng.randint(1, 5000)),
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(200),  # TLS
                b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 3000 + b"\r\n",
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n{}",
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n{}",
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
                b"BREW /coffee HTTP/1.1\r\nHost: a\r\n\r\n",
                b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n",
            ]
        )
        try:
            status, text = await self.transfer(data, patience=5.0)
        except asyncio.TimeoutError:
            return Outcome("no HTTP", 0, left=True)
        return Outcome("no HTTP", status, (0, 400, 403, 404, 405, 408, 411, 413, 414, 417, 431), text[:300])

    async def look(self) -> Outcome:
        """One of the pages and lists that monitors and clients fetch."""
        path, wanted = self.rng.choice(
            [
                ("/health", 200),
                ("/metrics", 200),
                ("/v1/models", 200),
                ("/api/tags", 200),
                ("/api/ps", 200),
                ("/api/version", 200),
                ("/slots", 200),
                ("/props", 200),
                ("/", 200),
                ("/chat", 200),
                ("/openapi.json", 200),
                ("/v1/models/nope", 404),
                ("/../../etc/passwd", 404),
            ]
        )
        status, text = await self.exchange("GET", path, None)
        return Outcome(f"get {path}", status, (wanted,), text[:300])

    async def stay(self) -> Outcome:
        """Several requests over one connection, two of them sent without waiting for an answer."""
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
        body = json.dumps({"prompt": self.words(1, 10), "max_tokens": 4}).encode()
        data = self.head("POST", "/v1/completions", body, close=False)
        try:
            writer.write(data + self.head("GET", "/health", None, close=False))
            for _ in range(2):
                status, text = await asyncio.wait_for(one_response(reader), PATIENCE)
                if status != 200:
                    break
            else:
                writer.write(data)
                status, text = await asyncio.wait_for(one_response(reader), PATIENCE)
            return Outcome("kept connection", status, (200,), text[:300])
        finally:
            await close(writer)

    def acts(self) -> list[tuple[float, Callable[[], Awaitable[Outcome]]]]:
        """All acts with their weights."""
        return [
            (40, self.ask),
            (22, self.leave),
            (10, self.mangle),
            (8, self.read_long),
            (6, self.look),
            (4, self.dawdle),
            (4, self.stay),
            (3, self.read_too_long),
            (3, self.babble),
        ]

    # -- HTTP -----------------------------------------------------------------------------------------------------

    def head(self, method: str, path: str, data: bytes | None, close: bool = True) -> bytes:
        """The bytes of a request."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}:{self.port}"]
        lines += ["Connection: close"] if close else []
        if data is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        return "\r\n".join([*lines, "", ""]).encode() + (data or b"")

    async def exchange(self, method: str, path: str, data: bytes | None) -> tuple[int, str]:
        """One request and its whole response: status, body."""
        return await self.transfer(self.head(method, path, data))

    async def transfer(self, data: bytes, patience: float = PATIENCE) -> tuple[int, str]:
        """Send bytes, read until the server closes."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        got = b""

        async def read() -> None:
            nonlocal got
            while piece := await reader.read(1 << 16):
                got += piece

        async def run() -> None:
            try:
                writer.write(data)
                await writer.drain()
            except ConnectionError:
                pass  # refused before everything was sent: the answer may be there all the same
            try:
                await read()
            except ConnectionError:
                pass

        try:
            await asyncio.wait_for(run(), patience)
        finally:
            await close(writer)
        return status_of(got), got.partition(b"\r\n\r\n")[2].decode(errors="replace")


def status_of(data: bytes) -> int:
    """Status code of a response that begins with ``data``; 0: it is none."""
    parts = data[:40].split(None, 2)
    return int(parts[1]) if len(parts) > 1 and parts[0].startswith(b"HTTP/") and parts[1].isdigit() else 0


async def one_response(reader: asyncio.StreamReader) -> tuple[int, str]:
    """A response with a length, from a connection that stays open."""
    status, length = status_of(await reader.readline()), 0
    while line := (await reader.readline()).strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return status, (await reader.readexactly(length)).decode(errors="replace")


async def close(writer: asyncio.StreamWriter) -> None:
    """Close a connection, whatever its other end has done."""
    writer.close()
    try:
        await writer.wait_closed()
    except (OSError, asyncio.TimeoutError):
        pass
