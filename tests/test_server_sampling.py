"""Log-probabilities and sampling parameters over HTTP."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from fake_model import FakeModel
from served import HI, Served

from ggfw.chat.deltas import ReasoningDelta, TextDelta
from ggfw.library import Model
from ggfw.sampling import Params

TEXT = "hello wörld — ☃!"


def hesitant(model: FakeModel, script: list[int]):
    """Logits that give the scripted token 3/4 and its successor 1/4."""

    def policy(tokens: list[int], n_prompt: int) -> np.ndarray:
        at = len(tokens) - n_prompt
        token = script[at] if at < len(script) else model.tokenizer.eos_id
        row = np.full(model.n_vocab, -60.0, np.float32)
        row[token], row[(token + 1) % model.n_vocab] = math.log(3), 0.0
        return row

    return policy


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served() as server:
        fake = server.fake
        fake.executor._policy = hesitant(fake, list(TEXT.encode()))
        yield server


def content(choice: dict[str, Any]) -> list[dict[str, Any]]:
    assert set(choice["logprobs"]) == {"content", "refusal"}
    return choice["logprobs"]["content"]


@pytest.mark.parametrize("n", [None, 0, 1, 3, 20])
def test_shape(served: Served, n: int | None) -> None:
    more = {} if n is None else {"top_logprobs": n}
    choice = served.post(logprobs=True, **more).json()["choices"][0]
    assert choice["message"]["content"] == TEXT
    entries = content(choice)
    assert b"".join(bytes(e["bytes"]) for e in entries).decode() == TEXT
    for entry in entries:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert entry["logprob"] == pytest.approx(math.log(0.75), abs=1e-6)
        assert len(entry["top_logprobs"]) == (n or 0)
        for top in entry["top_logprobs"]:
            assert set(top) == {"token", "logprob", "bytes"}
        if n and n > 1:
            assert entry["top_logprobs"][0]["bytes"] == entry["bytes"]
            assert entry["top_logprobs"][1]["logprob"] == pytest.approx(math.log(0.25), abs=1e-6)
    assert [e["token"] for e in entries[:3]] == ["h", "e", "l"]
    assert entries[7]["token"] == "�" and entries[7]["bytes"] == [0xC3]


def test_streamed_equals_plain(served: Served) -> None:
    plain = content(served.post(logprobs=True, top_logprobs=2).json()["choices"][0])
    frames = served.frames(logprobs=True, top_logprobs=2)
    streamed = []
    for frame in frames:
        choice = frame["choices"][0]
        assert "logprobs" in choice
        if choice["logprobs"]:
            text = b"".join(bytes(e["bytes"]) for e in content(choice)).decode()
            assert text == choice["delta"]["content"]
            streamed += content(choice)
    assert streamed == plain
    assert all("logprobs" not in c for f in served.frames() for c in f["choices"])


def test_stop_strings_and_ends_have_no_entries(served: Served) -> None:
    choice = served.post(logprobs=True, stop="wör").json()["choices"][0]
    assert choice["message"]["content"] == "hello "
    assert b"".join(bytes(e["bytes"]) for e in content(choice)) == b"hello "
    choice = served.post(logprobs=True, max_tokens=3).json()["choices"][0]
    assert [e["token"] for e in content(choice)] == ["h", "e", "l"]


def test_suppressed_tokens_keep_the_models_probability(served: Served) -> None:
    choice = served.post(logprobs=True, top_logprobs=2, max_tokens=1, logit_bias={str(ord("h")): -100}).json()
    (entry,) = content(choice["choices"][0])
    assert entry["token"] == "i" and entry["logprob"] == pytest.approx(math.log(0.25), abs=1e-6)
    assert [t["token"] for t in entry["top_logprobs"]] == ["h", "i"]


def test_a_bias_for_a_token_that_is_not_there_is_refused(served: Served) -> None:
    answer = served.post(logit_bias={"99999999": 1}, max_tokens=1)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "logit_bias" and "99999999" in error["message"]


def test_openai_client_reads_them(served: Served) -> None:
    client = openai.OpenAI(base_url=f"{served.live.url}/v1", api_key="none")
    answer = client.chat.completions.create(
        model="fake",
        messages=HI,
        temperature=0,
        logprobs=True,
        top_logprobs=1,  # type: ignore[arg-type]
    )
    noted = answer.choices[0].logprobs
    assert (
        noted
        and noted.content
        and noted.content[0].token == "h"
        and noted.content[0].top_logprobs[0].token == "h"
    )


FIELDS = {
    "temperature": 1.5, "top_k": 7, "top_p": 0.8, "min_p": 0.01, "typical_p": 0.9, "seed": 5, "repeat_last_n": 9,
    "min_keep": 2, "min_tokens": 1, "top_n_sigma": 1.5, "dynatemp_range": 0.25, "dynatemp_exponent": 2.0,
    "xtc_probability": 0.5, "xtc_threshold": 0.25, "dry_multiplier": 0.5, "dry_base": 1.5, "dry_allowed_length": 3,
    "dry_penalty_last_n": 32, "dry_sequence_breakers": ["|"], "mirostat_tau": 4.0, "mirostat_eta": 0.5,
    "adaptive_target": 0.25, "adaptive_decay": 0.5, "samplers": ["top_k", "temperature"], "mirostat": 2,
}  # fmt: skip


def test_every_sampling_field_arrives(served: Served) -> None:
    served.seen.clear()
    assert served.post(**FIELDS, logit_bias=[[5, False], [6, 1.5]], max_tokens=2).status_code == 200
    assert served.post(samplers="kt", sampling_profile="golem", max_tokens=1).status_code == 200
    seen: list[Params] = [request.params for request in served.seen]
    p = seen[0]
    names = {"repeat_last_n": "penalty_last_n"}
    for name, value in FIELDS.items():
        found = getattr(p, names.get(name, name))
        assert found == (tuple(value) if isinstance(value, list) else value), name
    assert p.logit_bias == {5: -math.inf, 6: 1.5}
    assert seen[1].samplers == ("top_k", "temperature")
    assert (seen[1].top_k, seen[1].temperature) == (64, 0)


# -- the same in the library -----------------------------------------------------------------------


def test_results_have_one_entry_per_token() -> None:
    fake = FakeModel()
    fake.executor._policy = hesitant(fake, [*b"ab", fake.tokenizer.specials["<s>"], *b"c"])
    with Model(fake) as model:  # type: ignore[arg-type]
        result = model.generate("x", temperature=0, logprobs=2)
        assert result.logprobs is not None and tuple(e.id for e in result.logprobs) == result.token_ids
        assert [e.part for e in result.logprobs] == ["text", "text", "text", "text", ""]
        assert result.to_dict()["logprobs"][0]["top"][1]["logprob"] == pytest.approx(math.log(0.25), abs=1e-6)
        assert model.generate("x", temperature=0).logprobs is None


class Thinking:
    """A parser: what stands between ``<`` and ``>`` is reasoning; white space behind it is dropped."""

    def __init__(self) -> None:
        self.inside, self.fresh = False, False

    def push(self, text: str) -> list[Any]:
        out: list[Any] = []
        for letter in text:
            if letter in "<>":
                self.inside, self.fresh = letter == "<", letter == ">"
            elif not (self.fresh and letter.isspace()):
                self.fresh = False
                out.append((ReasoningDelta if self.inside else TextDelta)(letter))
        return out

    def finish(self) -> list[Any]:
        return []


def test_parts_of_an_answer_with_reasoning() -> None:
    fake = FakeModel("a<bc>\n\nde")
    with Model(fake) as model:  # type: ignore[arg-type]
        request = model.request("x", temperature=0, logprobs=0)
        request.parser = Thinking()
        handle = model.submit(request)
        deltas = list(handle)
        result = handle.result()
    assert (result.text, result.reasoning) == ("ade", "bc")
    assert [(chr(e.id), e.part) for e in result.logprobs or () if e.id < 256] == [
        ("a", "text"), ("<", ""), ("b", "reasoning"), ("c", "reasoning"), (">", ""), ("\n", ""), ("\n", ""),
        ("d", "text"), ("e", "text"),
    ]  # fmt: skip
    for delta in deltas:
        assert "".join(chr(e.id) for e in delta.logprobs) == delta.text


def test_biases_of_texts_are_of_their_tokens(served: Served) -> None:
    for path, ask in (("/completion", {"prompt": "x"}), ("/v1/chat/completions", {"messages": HI})):
        bias = [["hé", False], [5, 1], ["\x05a", 1.5]]
        response = served.http.post(path, json={**ask, "logit_bias": bias, "max_tokens": 1})
        assert response.status_code == 200, response.text
        want = {**dict.fromkeys("hé".encode(), -math.inf), 5: 2.5, ord("a"): 1.5}
        assert served.seen[-1].params.logit_bias == want
