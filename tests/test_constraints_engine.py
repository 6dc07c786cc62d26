"""Constrained requests on a small random model and over HTTP: what comes out parses and satisfies the schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tiny_models
from fake_model import FakeModel, wait_until
from live_server import LiveServer

import ggfw
from ggfw.constraints import Compiler, Grammar
from ggfw.errors import GenerationError, InvalidRequest
from ggfw.library import Model
from ggfw.sampling import Params, Sampler, SamplerFactory
from ggfw.sampling.constrained import ConstrainedSampler
from ggfw.server import create_app

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 2},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "age", "tags", "ok"],
    "additionalProperties": False,
}
#: Everything that a request may draw with.
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0},
    {"temperature": 0.8, "repeat_penalty": 1.3, "frequency_penalty": 0.5},
    {"temperature": 1.0, "top_n_sigma": 1.0, "xtc_probability": 0.5},
    {"temperature": 1.0, "mirostat": 2},
    {"temperature": 1.0, "logit_bias": {2: 50.0, 260: 50.0, 3 + ord("{"): -50.0}},
    {"temperature": 1.0, "ignore_eos": True, "min_tokens": 400},
]


def check(text: str) -> dict[str, Any]:
    """The value of an answer to SCHEMA."""
    value = json.loads(text)
    assert list(value) == ["name", "age", "tags", "ok"]
    assert isinstance(value["name"], str) and len(value["name"]) <= 6
    assert type(value["age"]) is int and 0 <= value["age"] <= 120
    assert 1 <= len(value["tags"]) <= 2 and set(value["tags"]) <= {"x", "y"}
    assert isinstance(value["ok"], bool)
    return value


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_ctx=1024)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with ggfw.load(path, threads=1, n_parallel=4) as loaded:
        yield loaded


@pytest.mark.parametrize("sampling", SAMPLING, ids=lambda s: "-".join(s))
def test_answers_satisfy_the_schema(model: Model, sampling: dict[str, Any]) -> None:
    requests = [model.request("hello", schema=SCHEMA, seed=seed, **sampling) for seed in range(6)]
    for result in [handle.result(60) for handle in map(model.submit, requests)]:
        check(result.text)
        assert result.finish_reason == "stop"
    wait_until(lambda: model.loaded.cache.n_pages_used() == 0)


def test_a_seed_gives_the_same_answer_alone_and_in_company(model: Model) -> None:
    options = {"schema": SCHEMA, "temperature": 1.2, "top_k": 0}
    alone = [model.generate("hello", seed=seed, **options).token_ids for seed in range(4)]
    handles = [model.submit(model.request("hello", seed=seed, **options)) for seed in range(4)]
    handles.append(model.submit(model.request("hello", seed=9, max_tokens=50)))
    assert [handle.result(60).token_ids for handle in handles[:4]] == alone
    assert len(set(alone)) > 1


def test_slow_masks_change_nothing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"schema": SCHEMA, "temperature": 1.2, "top_k": 0, "seed": 3}
    before = model.generate("hello", **options).token_ids
    monkeypatch.setattr("ggfw.constraints.matcher.SLOW_MASK", -1.0)
    assert model.generate("hello", **options).token_ids == before


def test_the_reference_executor_answers_too(path: Path) -> None:
    with ggfw.load(path, backend="reference") as model:
        check(model.generate("hello", schema=SCHEMA, seed=1, temperature=1.0).text)


def test_only_max_tokens_cuts_an_answer(model: Model) -> None:
    result = model.generate("hello", schema=SCHEMA, seed=1, max_tokens=9)
    assert result.finish_reason == "length" and result.usage.completion_tokens == 9
    constraint = model.compiler.compile(Grammar.json_schema(SCHEMA))
    for token in result.token_ids:
        assert constraint.allows(token)
        constraint.accept(token)
    exact = model.generate("hello", choice=["ab"], max_tokens=2)
    assert (exact.text, exact.finish_reason) == ("ab", "stop")


def test_every_kind_of_constraint(model: Model) -> None:
    assert isinstance(json.loads(model.generate("x", json=True, seed=2, temperature=1.5).text), dict)
    assert model.generate("x", regex="[a-f]{3}", seed=1).text.strip("abcdef") == ""
    assert model.generate("x", choice=["yes", "no"], seed=1).text in ("yes", "no")
    assert model.generate("x", grammar='root ::= "<" [0-9] ">"', seed=1).text[::2] == "<>"
    assert model.generate("x", grammar='start: "<" /[0-9]/ ">"', seed=1).text[::2] == "<>"
    assert model.generate("x", grammar=Grammar.regex("z+y"), seed=1, temperature=0).text.endswith("y")
    with pytest.raises(InvalidRequest, match="'not'"):
        model.generate("x", schema={"not": {}})


def test_end_tokens_that_may_follow_end_the_answer(model: Model) -> None:
    result = model.generate("x", regex="a+", temperature=0, logit_bias={2: 100.0})
    assert (result.text, result.finish_reason) == ("a", "stop") and result.token_ids[-1] == 2


def test_log_probabilities_are_the_models(model: Model) -> None:
    free = model.generate("hello", max_tokens=1, temperature=0, logprobs=3)
    bound = model.generate("hello", choice=["q"], temperature=0, logprobs=3)
    assert bound.text == "q"
    noted, other = bound.logprobs[0], free.logprobs[0]
    assert noted.id == bound.token_ids[0] and [t.id for t in noted.top] == [t.id for t in other.top]
    assert noted.logprob < noted.top[0].logprob


def test_a_constraint_that_leads_nowhere_fails_the_request(model: Model) -> None:
    digits = {3 + ord(str(n)): float("-inf") for n in range(10)} | {3 + ord("-"): float("-inf")}
    with pytest.raises(GenerationError, match="leads nowhere"):
        model.generate("hello", schema={"type": "integer"}, logit_bias=digits)
    assert model.generate("hello", choice=["a"]).text == "a"


def test_a_streamed_answer_is_the_same(model: Model) -> None:
    options = {"schema": SCHEMA, "seed": 5, "temperature": 1.0}
    pieces = list(model.stream("hello", **options))
    assert "".join(pieces) == model.generate("hello", **options).text and len(pieces) > 1


def test_the_native_chain_draws_like_the_python_one(model: Model) -> None:
    """Refused draws are repeated from the same row, with the same random numbers, in C and in NumPy."""
    rng = np.random.default_rng(1)
    grammar = Grammar.json_schema(SCHEMA)
    for params in (Params(seed=1), Params(seed=2, temperature=1.5, top_k=0, min_p=0), Params(temperature=0)):
        setup = SamplerFactory(model.tokenizer, dict).setup(params)
        native = ConstrainedSampler(
            model.loaded.executor.new_sampler(setup, [1]), model.compiler.compile(grammar)
        )
        python = ConstrainedSampler(Sampler(params), model.compiler.compile(grammar))
        assert native._pick_masked is not None and python._pick_masked is None
        for _ in range(200):
            row = (rng.standard_normal(model.loaded.n_vocab) * 3).astype(np.float32)
            token = native.pick(row)
            assert token == python.pick(row) and native.constraint.allows(token)
            native.accept(token)
            python.accept(token)
            if native.constraint.complete:
                break
        assert native.n_refused == python.n_refused > 0


# -- over HTTP -------------------------------------------------------------------------------------------------------

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    """A model that would rather say hello, again and again."""
    scripts = {"<think>": "hm, {so} be it</think>\nhello"}
    fake = FakeModel("hello" * 20, scripts=scripts, endless=True, n_ctx=1024, template=CHATML)
    model = Model(fake)  # type: ignore[arg-type]
    with (
        LiveServer(create_app(model, log=lambda *_: None)) as live,
        httpx.Client(base_url=live.url, timeout=30) as client,
    ):
        yield client
    model.close()


def post(http: httpx.Client, **body: Any) -> httpx.Response:
    return http.post(
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "hi"}], "temperature": 0, **body},
    )


FORMS = [
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
        }
    },
    {"response_format": {"type": "json_schema", "schema": SCHEMA}},
    {"response_format": {"type": "json_object", "schema": SCHEMA}},
    {"json_schema": SCHEMA},
    {"guided_json": SCHEMA},
    {"guided_json": json.dumps(SCHEMA)},
    {"structured_outputs": {"json": SCHEMA}},
]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: next(iter(f)))
@pytest.mark.parametrize("thinking", [False, True])
def test_response_format_is_enforced(http: httpx.Client, form: dict[str, Any], thinking: bool) -> None:
    kwargs = {"chat_template_kwargs": {"enable_thinking": thinking}}
    response = post(http, **form, **kwargs)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    check(choice["message"]["content"])
    assert choice["finish_reason"] == "stop"
    assert choice["message"].get("reasoning_content") == ("hm, {so} be it" if thinking else None)
    streamed = post(http, stream=True, **form, **kwargs)
    chunks = [json.loads(line[6:]) for line in streamed.text.split("\n\n")[:-2]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(d.get("content", "") for d in deltas) == choice["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_other_forms(http: httpx.Client) -> None:
    for body, want in [
        ({"response_format": {"type": "text"}, "max_tokens": 5}, "hello"),
        ({"grammar": "", "max_tokens": 5}, "hello"),
        ({"grammar": 'root ::= "hell" | "no"'}, "hell"),
        ({"grammar": 'start: "he" /[a-m]/'}, "hel"),
        ({"guided_choice": ["hi", "help"]}, "help"),
        ({"guided_regex": "[a-l]{4}"}, "hell"),
        ({"guided_grammar": 'root ::= "he"'}, "he"),
        ({"structured_outputs": {"choice": ["held"]}}, "held"),
    ]:
        response = post(http, **body)
        assert response.status_code == 200, response.text
        assert response.json()["choices"][0]["message"]["content"] == want, body
    response = post(http, response_format={"type": "json_object"}, logit_bias={str(ord("}")): 60})
    assert isinstance(json.loads(response.json()["choices"][0]["message"]["content"]), dict)


DEEP = "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000
CHAIN = "root ::= r0\n" + "".join(f'r{i} ::= r{i + 1} "x"\n' for i in range(5000)) + 'r5000 ::= "a"'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format", "schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format", "schema"),
        ({"response_format": {"type": "json_schema", "schema": 5}}, "response_format", "object"),
        ({"response_format": {"type": "xml"}}, "response_format", "xml"),
        ({"response_format": {}}, "response_format", "type"),
        ({"response_format": "json"}, "response_format", ""),
        ({"response_format": {"type": "json_schema", "schema": {"if": {}}}}, "response_format", "'if'"),
        ({"guided_json": {"uniqueItems": True}}, "guided_json", "'uniqueItems'"),
        ({"guided_json": "{"}, "guided_json", "JSON"),
        ({"guided_regex": "("}, "guided_regex", "group"),
        ({"guided_choice": []}, "guided_choice", "choice"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs", "structural_tag"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "combined"),
        ({"grammar": "hello"}, "grammar", "neither"),
        ({"grammar": 'root ::= root "a"'}, "grammar", "left-recursive"),
        ({"grammar": 'root ::= "a"', "guided_regex": "a"}, "guided_regex", "combined"),
        ({"grammar": DEEP}, "grammar", "60000 deep"),
        ({"grammar": CHAIN}, "grammar", "256 deep"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused(
    http: httpx.Client, body: Any, param: str, says: str, stream: bool
) -> None:
    response = post(http, stream=stream, **body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param and says in error["message"] and len(error["message"]) < 500


def test_a_schema_nested_deeply_is_refused(http: httpx.Client) -> None:
    schema = '{"type": "object", "properties": {"a": ' * 2000 + "{}" + "}}" * 2000
    body = '{"messages": [{"role": "user", "content": "hi"}], "json_schema": ' + schema + "}"
    response = http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400 and "recursion" in response.json()["error"]["message"]
    assert post(http, max_tokens=1).status_code == 200


def test_constraints_of_one_model_know_one_vocabulary(model: Model) -> None:
    assert isinstance(model.compiler, Compiler) and model.compiler is model.compiler


def test_one_constraint_serves_every_answer_it_is_given_to(model: Model) -> None:
    constraint = model.compiler.compile(Grammar.regex("[a-c]{8}"))
    options: dict[str, Any] = {"constraint": constraint, "max_tokens": 20, "seed": 1}
    alone = [model.generate([5, 6, 7], **options).text for _ in range(2)]
    together = [choice.text for choice in model.generate_choices([5, 6, 7], 3, **options)]
    assert alone[0] == alone[1] == together[0]
    assert all(len(text) == 8 and set(text) <= set("abc") for text in together)
    assert constraint.n_tokens == 0


def test_choices_do_not_advance_one_constraint_together(model: Model) -> None:
    class Counted:
        n = 0

        def allows(self, token: int) -> bool:
            return token == 70 + self.n

        def accept(self, token: int) -> None:
            self.n += 1

        def first_bytes(self) -> list[bool]:
            return [True] * 256

        def first_byte(self, token: int) -> int:
            return 0

    with pytest.raises(InvalidRequest, match="copy"):
        model.generate_choices([5, 6], 2, constraint=Counted(), max_tokens=3)
    assert model.generate([5, 6], constraint=Counted(), max_tokens=3).token_ids == (70, 71, 72)


def test_a_constraint_goes_with_no_other_description_of_the_answer(model: Model) -> None:
    constraint = model.compiler.compile(Grammar.regex("[a-c]{8}"))
    with pytest.raises(InvalidRequest, match="constraint and regex cannot be combined") as caught:
        model.generate([5, 6], constraint=constraint, regex="[d-f]{4}", max_tokens=3)
    assert caught.value.param == "regex"
