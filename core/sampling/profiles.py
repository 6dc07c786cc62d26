"""Sampling profiles: the defaults, and where they differ the arithmetic, of the systems users come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from ggfw.descriptors import SamplerStage
from ggfw.errors import InvalidRequest, brief
from ggfw.sampling.params import Params

#: Built-in profiles: the chain is llama.cpp's and golem's, so that only defaults differ.
PROFILES: Mapping[str, Params] = MappingProxyType(
    {
        "llama.cpp": Params(),
        "golem": Params(temperature=1.0, top_k=64, top_p=0.95, min_p=0.05),
    }
)


def profile(name: str, stages: Mapping[str, SamplerStage]) -> Params:
    """The defaults of a profile.

    Args:
        name: built in, or the name of a plugin's sampler stage that is a profile.
        stages: the plugins' stages by name.

    Raises:
        InvalidRequest: there is no such profile.
    """
    if isinstance(name, str) and name in PROFILES:
        return PROFILES[name]
    offered = {s.name: s for s in stages.values() if s.profile is not None}
    if not isinstance(name, str) or name not in offered:
        known = ", ".join((*PROFILES, *offered))
        raise InvalidRequest(
            f"unknown sampling profile {brief(name)}; known: {known}", param="sampling_profile"
        )
    return replace(Params(), **dict(offered[name].profile or {}))
