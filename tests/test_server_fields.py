"""Every field that the clients of a family can send is honoured, refused by name, or documented as without effect.

The lists are those of the client packages: openai 3.57, anthropic 2.14, ollama 0.6 and llama-server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from served import HI, TOOLS_CHATML, Served, function

from ggfw.server.fields import NO_EFFECT


@dataclass
class Family:
    """One endpoint.

    Args:
        body: of a request that is answered.
        known: all fields of its clients.
        honoured: field -> (a value that is taken, one that is not).
        refused: field -> (a value that asks for nothing or None, one that is refused).
        hints: field -> (a value, one of a wrong type).
        inside: the field in which the others are (Ollama's options).
    """

    body: dict[str, Any]
    known: str
    honoured: dict[str, tuple[Any, Any]]
    refused: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    hints: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    inside: str = ""


TEXT, OBJECT, NUMBER, FLAG = ("x", 5), ({"a": "b"}, "x"), (3, "x"), (True, "x")
SAMPLING: dict[str, tuple[Any, Any]] = {
    "temperature": (0.5, "hot"),
    "top_p": (0.9, 2),
    "frequency_penalty": (0.5, 5),
    "presence_penalty": (0.5, "x"),
    "seed": (5, "x"),
    "logit_bias": ({"5": 1}, {"x": 1}),
}
EXTRAS: dict[str, tuple[Any, Any]] = {
    "top_k": (5, "x"), "min_p": (0.1, 2), "typical_p": (0.9, 2), "repeat_penalty": (1.1, "x"), "temp": (0.5, -1),
    "repetition_penalty": (1.1, -1), "repeat_last_n": (16, "x"), "min_tokens": (1, -1), "min_keep": (1, "x"),
    "top_n_sigma": (1.0, "x"), "dynatemp_range": (0.0, "x"), "dynatemp_exponent": (1.0, "x"), "mirostat": (0, 3),
    "xtc_probability": (0.0, 2.0), "xtc_threshold": (0.1, "x"), "dry_multiplier": (0.0, "x"), "dry_base": (1.75, "x"),
    "dry_allowed_length": (2, "x"), "dry_penalty_last_n": (16, "x"), "dry_sequence_breakers": (["\n"], "x"),
    "mirostat_tau": (5.0, "x"), "mirostat_eta": (0.1, "x"), "samplers": (["top_k"], ["nope"]),
    "sampling_profile": ("golem", "nope"), "adaptive_target": (0.5, "x"), "adaptive_decay": (0.5, "x"),
}  # fmt: skip
UNDONE: dict[str, tuple[Any, Any]] = {
    "tfs_z": (1.0, 0.5), "penalize_newline": (True, False), "penalize_nl": (True, False), "stop_token_ids": ([], [5]),
    "use_beam_search": (False, True), "length_penalty": (1.0, 2.0), "include_stop_str_in_output": (False, True),
    "truncate_prompt_tokens": (None, 5), "skip_special_tokens": (True, False),
}  # fmt: skip
FORMS: dict[str, tuple[Any, Any]] = {
    "response_format": ({"type": "text"}, {"type": "xml"}),
    "grammar": ('root ::= "a"', 5),
    "json_schema": ({"type": "boolean"}, "x"),
    "guided_json": ({"type": "boolean"}, 5),
    "guided_regex": ("a", 5),
    "guided_choice": (["a"], "a"),
    "guided_grammar": ('root ::= "a"', 5),
    "structured_outputs": ({"regex": "a"}, {"nope": 1}),
}
REASONING: dict[str, tuple[Any, Any]] = {
    "enable_thinking": (False, "x"),
    "reasoning_effort": ("low", 5),
    "reasoning_budget": (0, "x"),
    "chat_template_kwargs": ({"a": 1}, "x"),
}
OPENAI_HINTS: dict[str, tuple[Any, Any]] = {
    "prompt_cache_key": TEXT, "prompt_cache_options": OBJECT, "prompt_cache_retention": TEXT,
    "safety_identifier": TEXT,
    "service_tier": TEXT, "store": FLAG, "user": TEXT,
}  # fmt: skip
TOOLS = [function("f")]

FAMILIES: dict[str, Family] = {
    "/v1/chat/completions": Family(
        {"messages": HI},
        "audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens "
        "max_tokens messages metadata modalities model moderation n parallel_tool_calls prediction "
        "presence_penalty prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort "
        "response_format safety_identifier seed service_tier stop store stream stream_options temperature "
        "tool_choice tools top_logprobs top_p user verbosity web_search_options",
        {
            **SAMPLING, **EXTRAS, **FORMS, **REASONING, "messages": (HI, "x"), "model": ("fake", 5),
            "n": (1, 0), "max_tokens": (5, "x"), "max_completion_tokens": (5, 0), "stop": (["x"], 5),
            "stream": (False, "x"),
            "stream_options": ({"include_usage": True, "include_obfuscation": False}, "x"),
            "logprobs": (True, 3), "top_logprobs": (None, 21), "tools": (TOOLS, [{"type": "function"}]),
            "tool_choice": ("auto", 5), "parallel_tool_calls": (True, "x"), "system_prompt": ("x", 5),
            "cache_prompt": (True, "x"), "return_progress": (True, "x"), "timings_per_token": (True, "x"),
            "ignore_eos": (False, "x"), "add_generation_prompt": (True, "x"),
            "reasoning": ({"effort": "low"}, "x"),
        },
        {
            **UNDONE, "audio": (None, {"voice": "x"}), "function_call": (None, "auto"),
            "functions": ([], [{"name": "f"}]), "modalities": (["text"], ["audio"]),
            "moderation": (None, {"model": "x"}), "prediction": (None, {"type": "x"}),
            "verbosity": ("medium", "low"), "web_search_options": (None, {"a": 1}),
            "reasoning_format": ("auto", "none"), "parse_tool_calls": (True, False),
        },
        {**OPENAI_HINTS, "metadata": OBJECT, "id_slot": NUMBER},
    ),
    "/v1/completions": Family(
        {"prompt": "x"},
        "best_of echo frequency_penalty logit_bias logprobs max_tokens model n presence_penalty prompt seed "
        "stop stream stream_options suffix temperature top_p user",
        {
            **SAMPLING, **EXTRAS, **FORMS, "prompt": ("x", 5), "model": ("fake", 5), "n": (1, 0),
            "best_of": (1, 5), "max_tokens": (5, "x"), "stop": (["x"], 5), "stream": (False, "x"),
            "suffix": (None, "x"), "echo": (True, "x"), "stream_options": ({"include_usage": True}, "x"),
            "logprobs": (1, 21), "cache_prompt": (True, "x"), "return_progress": (True, "x"),
            "timings_per_token": (True, "x"), "ignore_eos": (False, "x"),
        },
        UNDONE,
        {"user": TEXT},
    ),
    "/v1/embeddings": Family(
        {"input": "x"},
        "dimensions encoding_format input model user",
        {
            "input": ("x", 5), "model": ("fake", 5), "dimensions": (4, 0),
            "encoding_format": ("base64", "hex"),
        },
        {},
        {"user": TEXT},
    ),
    "/v1/responses": Family(
        {"input": "x"},
        "access_programs background background_options context_management conversation image include input "
        "instructions max_output_tokens max_tool_calls metadata model moderation parallel_tool_calls "
        "previous_response_id prompt prompt_cache_key prompt_cache_options prompt_cache_retention reasoning "
        "safety_identifier service_tier store stream stream_options temperature text tool_choice tools "
        "top_logprobs top_p truncation user",
        {
            **{k: v for k, v in SAMPLING.items() if k in ("temperature", "top_p", "seed")}, **EXTRAS, **FORMS,
            "input": ("x", 5), "model": ("fake", 5), "instructions": ("x", 5), "max_output_tokens": (20, 0),
            "include": ([], "x"), "metadata": ({"a": "b"}, "x"), "parallel_tool_calls": (True, "x"),
            "reasoning": ({"effort": "low"}, "x"), "stream": (False, "x"),
            "text": ({"format": {"type": "text"}, "verbosity": "medium"}, {"format": {"type": "x"}}),
            "tool_choice": ("auto", 5), "top_logprobs": (1, 21), "cache_prompt": (True, "x"),
            "tools": ([{"type": "function", "name": "f", "parameters": {}}], [5]),
            "chat_template_kwargs": ({"a": 1}, "x"),
        },
        {
            **UNDONE, "access_programs": (None, ["x"]), "background": (False, True),
            "background_options": (None, {"a": 1}), "context_management": (None, [{"type": "x"}]),
            "conversation": (None, "x"), "image": (None, {"a": 1}), "moderation": (None, {"a": 1}),
            "previous_response_id": (None, "x"), "prompt": (None, {"id": "x"}),
            "truncation": ("disabled", "auto"),
        },
        {**OPENAI_HINTS, "max_tool_calls": NUMBER, "stream_options": OBJECT},
    ),
    "/v1/messages": Family(
        {"messages": HI, "max_tokens": 5},
        "cache_control container diagnostics inference_geo max_tokens messages metadata model output_config "
        "service_tier speed stop_sequences stream system temperature thinking tool_choice tools top_k top_p "
        "user_profile_id workspace_id",
        {
            **{k: v for k, v in SAMPLING.items() if k in ("temperature", "top_p", "seed")}, **EXTRAS, **FORMS,
            "messages": (HI, "x"), "max_tokens": (5, 0), "model": ("fake", 5), "stream": (False, "x"),
            "output_config": ({"effort": "low"}, "x"), "stop_sequences": (["x"], "x"), "system": ("x", 5),
            "thinking": ({"type": "disabled"}, {"type": "x"}), "tool_choice": (None, {"type": "x"}),
            "tools": ([{"name": "f", "input_schema": {"type": "object"}}], [5]), "cache_prompt": (True, "x"),
            "output_format": ({"type": "json_schema", "schema": {"type": "boolean"}}, {"type": "x"}),
            "chat_template_kwargs": ({"a": 1}, "x"),
        },
        {**UNDONE, "container": (None, "x"), "mcp_servers": ([], [{"url": "x"}])},
        {
            "cache_control": OBJECT, "diagnostics": OBJECT, "inference_geo": TEXT, "metadata": OBJECT,
            "service_tier": TEXT, "speed": TEXT, "user_profile_id": TEXT, "workspace_id": TEXT,
        },
    ),
    "/api/chat": Family(
        {"model": "fake", "messages": HI, "stream": False},
        "format keep_alive logprobs messages model options stream think tools top_logprobs",
        {
            "format": ("", "xml"), "keep_alive": ("5m", "abc"), "logprobs": (True, 5), "messages": (HI, "x"),
            "model": ("fake", 5), "options": ({}, "x"), "stream": (False, "x"), "think": (False, "sideways"),
            "tools": (TOOLS, [{"type": "function"}]), "top_logprobs": (1, 21),
        },
    ),
    "/api/generate": Family(
        {"model": "fake", "prompt": "x", "stream": False},
        "context format height images keep_alive logprobs model options prompt raw steps stream suffix "
        "system template think top_logprobs width",
        {
            "context": ([5], ["a"]), "format": ("", "xml"), "keep_alive": ("5m", "abc"), "logprobs": (True, 5),
            "model": ("fake", 5), "options": ({}, "x"), "prompt": ("x", 5), "raw": (False, "x"),
            "stream": (False, "x"), "suffix": (None, "x"), "system": ("x", 5), "think": (False, "sideways"),
            "top_logprobs": (1, 21),
        },
        {
            "height": (None, 5), "width": (None, 5), "steps": (None, 5), "images": ([], ["x"]),
            "template": ("", "{{ .Prompt }}"),
        },
    ),
    "/api/chat options": Family(
        {"model": "fake", "messages": HI, "stream": False},
        "embedding_only f16_kv frequency_penalty logits_all low_vram main_gpu mirostat mirostat_eta "
        "mirostat_tau num_batch num_ctx num_gpu num_keep num_predict num_thread numa penalize_newline "
        "presence_penalty repeat_last_n repeat_penalty seed stop temperature tfs_z top_k top_p typical_p "
        "use_mlock use_mmap vocab_only",
        {
            **SAMPLING, **EXTRAS, "num_predict": (5, "x"), "num_ctx": (64, 10**6), "stop": (["x"], 5),
            "ignore_eos": (False, "x"),
        },
        UNDONE,
        {
            "embedding_only": FLAG, "f16_kv": FLAG, "logits_all": FLAG, "low_vram": FLAG, "main_gpu": NUMBER,
            "num_batch": NUMBER, "num_gpu": NUMBER, "num_keep": NUMBER, "num_thread": NUMBER, "numa": FLAG,
            "use_mlock": FLAG, "use_mmap": FLAG, "vocab_only": FLAG,
        },
        inside="options",
    ),
    "/api/embed": Family(
        {"model": "fake", "input": "x"},
        "dimensions input keep_alive model options truncate",
        {
            "dimensions": (4, 0), "input": ("x", 5), "keep_alive": ("5m", "abc"), "model": ("fake", 5),
            "options": ({}, "x"), "truncate": (True, "x"),
        },
    ),
    "/api/embeddings": Family(
        {"model": "fake", "prompt": "x"},
        "keep_alive model options prompt",
        {"keep_alive": ("5m", "abc"), "model": ("fake", 5), "options": ({}, "x"), "prompt": ("x", 5)},
    ),
    "/completion": Family(
        {"prompt": "x"},
        "prompt n_predict temperature top_k top_p min_p typical_p repeat_penalty repeat_last_n "
        "presence_penalty frequency_penalty dry_multiplier dry_base dry_allowed_length dry_penalty_last_n "
        "dry_sequence_breakers xtc_probability xtc_threshold mirostat mirostat_tau mirostat_eta grammar "
        "json_schema seed ignore_eos logit_bias n_probs min_keep t_max_predict_ms id_slot cache_prompt "
        "return_tokens samplers timings_per_token return_progress post_sampling_probs response_fields lora "
        "stream stop n_keep n_indent n_discard n_cache_reuse grammar_lazy grammar_triggers preserved_tokens "
        "n_cmpl dynatemp_range dynatemp_exponent top_n_sigma",
        {
            **SAMPLING, **EXTRAS, **FORMS, "prompt": ("x", 5), "n_predict": (5, "x"), "max_tokens": (5, "x"),
            "model": ("fake", 5), "n_probs": (1, 200), "stop": (["x"], 5), "stream": (False, "x"),
            "cache_prompt": (True, "x"), "return_progress": (True, "x"), "timings_per_token": (True, "x"),
            "ignore_eos": (False, "x"), "return_tokens": (True, "x"),
        },
        {
            **UNDONE, "post_sampling_probs": (False, True), "lora": ([], [{"id": 0}]),
            "image_data": ([], [{"id": 0}]), "response_fields": ([], ["x"]), "t_max_predict_ms": (-1, 100),
            "n_indent": (0, 4), "grammar_lazy": (False, True), "grammar_triggers": ([], ["x"]),
            "preserved_tokens": ([], ["x"]), "n_cmpl": (1, 2),
        },
        {"id_slot": NUMBER, "n_keep": NUMBER, "n_discard": NUMBER, "n_cache_reuse": NUMBER},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served(script="a", template=TOOLS_CHATML, n_ctx=1024) as server:
        yield server


def ask(served: Served, name: str, given: dict[str, Any]) -> Any:
    family = FAMILIES[name]
    body = {**family.body, family.inside: given} if family.inside else {**family.body, **given}
    return served.http.post(name.split()[0], json=body)


def complaint(name: str, response: Any) -> str:
    """The sentence of an error, and what stands in ``param``."""
    assert response.status_code == 400, response.text
    found = response.json()
    if name.startswith("/api/"):
        return str(found["error"])
    if name == "/v1/messages":
        assert found["type"] == "error" and found["error"]["type"] == "invalid_request_error"
        return str(found["error"]["message"])
    assert found["error"]["type"] == "invalid_request_error"
    return f"{found['error']['param']} {found['error']['message']}"


@pytest.mark.parametrize("name", FAMILIES)
def test_every_known_field_has_its_place(name: str) -> None:
    family = FAMILIES[name]
    places = (family.honoured, family.refused, family.hints)
    assert set(family.known.split()) <= set().union(*places)
    assert sum(map(len, places)) == len(set().union(*places)), "each in one place only"


@pytest.mark.parametrize("name", FAMILIES)
def test_wrong_values_are_refused_by_name(served: Served, name: str) -> None:
    family = FAMILIES[name]
    for field_name, (_, wrong) in (family.honoured | family.refused | family.hints).items():
        text = complaint(name, ask(served, name, {field_name: wrong}))
        assert field_name in text, (field_name, text)


@pytest.mark.parametrize(
    ("name", "field_name"),
    [("/v1/chat/completions", n) for n in ("audio", "web_search_options", "prediction", "moderation")]
    + [("/v1/responses", n) for n in ("conversation", "prompt", "moderation", "image")]
    + [("/v1/messages", "container")],
)
def test_an_empty_object_asks_for_something(served: Served, name: str, field_name: str) -> None:
    assert field_name in complaint(name, ask(served, name, {field_name: {}}))


@pytest.mark.parametrize("name", ["/v1/messages", "/v1/responses", "/v1/chat/completions"])
def test_forms_of_the_answer_are_honoured(served: Served, name: str) -> None:
    for given in ({"guided_choice": ["b"]}, {"guided_regex": "b"}, {"grammar": 'root ::= "b"'}):
        assert '"b"' in ask(served, name, given).text, given
    assert "cannot be combined" in complaint(
        name, ask(served, name, {"guided_regex": "b", "guided_choice": ["b"]})
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_good_values_are_taken(served: Served, name: str) -> None:
    family = FAMILIES[name]
    for field_name, (good, _) in (family.honoured | family.refused | family.hints).items():
        response = ask(served, name, {field_name: good})
        assert response.status_code == 200, (field_name, response.text)
    fields = (family.honoured | family.refused | family.hints).keys() - family.body.keys()
    response = ask(served, name, dict.fromkeys(fields))
    assert response.status_code == 200, response.text  # null is as good as nothing
    assert ask(served, name, {"a_field_of_the_future": [1]}).status_code == 200


@pytest.mark.parametrize("name", FAMILIES)
def test_fields_without_effect_are_documented(served: Served, name: str) -> None:
    found = served.http.get("/openapi.json").json()
    reference = found["paths"][name.split()[0]]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    schemas = found["components"]["schemas"]
    schema = schemas[reference["$ref"].rpartition("/")[2]]
    if FAMILIES[name].inside:
        schema = schemas["Options"]
    said = {n for n, prop in schema["properties"].items() if prop.get("description") == NO_EFFECT}
    assert said == set(FAMILIES[name].hints)


def test_sampling_reaches_the_engine(served: Served) -> None:
    """What is taken is not dropped on the way: each family's parameters arrive as they were given."""
    values = {"temperature": 0.5, "top_k": 7, "top_p": 0.8, "min_p": 0.1, "seed": 9, "repeat_penalty": 1.2}
    for name, family in FAMILIES.items():
        if "temperature" not in family.honoured:
            continue
        assert ask(served, name, values).status_code == 200
        params = served.seen[-1].params
        got = (
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            params.seed,
            params.penalty_repeat,
        )
        assert got == tuple(values.values()), name


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HI, "n": 68}),
        ("/v1/completions", {"prompt": "x", "n": 69}),
        ("/v1/completions", {"prompt": ["x"] * 35, "n": 2}),
        ("/v1/completions", {"prompt": ["x"] * 70}),
    ],
)
def test_more_answers_than_ever_fit_are_a_400(served: Served, path: str, body: dict[str, Any]) -> None:
    response = served.http.post(path, json=body)
    if body.get("n") == 68:  # four run and 64 wait: that many just fit
        assert response.status_code == 200
        return
    error = response.json()["error"]
    assert response.status_code == 400 and "68 in all" in error["message"]
    assert error["param"] == ("n" if "n" in body and isinstance(body["prompt"], str) else "prompt")
    assert "retry-after" not in response.headers


def test_values_that_no_document_can_hold(served: Served) -> None:
    """JSON beyond what its own grammar says: numbers without an end, names twice, bytes that are no text."""
    for path, family in FAMILIES.items():
        url = path.split()[0]
        whole = json.dumps(family.body)
        for content in (
            whole.replace("{", '{"temperature": NaN, ', 1),
            whole.replace("{", '{"seed": 1e999, ', 1),
            whole[:-1],
            whole + "x",
            "[" + whole + "]",
            '"x"',
            "null",
        ):
            if "/api/embed" in url and ("NaN" in content or "1e999" in content):
                continue  # no number of theirs
            response = served.http.post(url, content=content)
            assert response.status_code in (
                (200, 400) if path.startswith("/api/") or "embeddings" in path else (400,)
            ), (
                url,
                content,
                response.text,
            )
            assert response.status_code == 200 or "error" in response.json()
