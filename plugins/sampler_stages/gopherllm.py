"""The sampling profile ``gopherllm``: defaults and arithmetic of GopherLLM, as two stages of the chain."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.descriptors import SamplerStage
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

_CODE = "ggfw.plugins.sampler_stages.gopherllm_stages"


@hookimpl
def ggfw_register_sampler_stages() -> Iterable[SamplerStage]:
    """Its repetition penalty, and everything behind it."""
    return [
        SamplerStage(
            name="gopherllm_repeat",
            order=200,
            load=f"{_CODE}:make_repeat",
            summary="a repetition penalty per occurrence, over the whole prompt at first",
        ),
        SamplerStage(
            name="gopherllm",
            order=500,
            load=f"{_CODE}:make_chain",
            summary="top-k, temperature, min-p, top-p and the draw in GopherLLM's order; a profile",
            profile={
                "temperature": 0.7,
                "top_p": 0.9,
                "top_k": 40,
                "min_p": 0.0,
                "penalty_repeat": 1.1,
                "samplers": ("gopherllm_repeat", "gopherllm"),
            },
        ),
    ]
