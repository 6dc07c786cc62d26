"""ggfw on Ray Serve.

:func:`build` makes an application for ``serve.run``: an ingress that speaks everything the ggfw server speaks, in front
of replicas of the engine. Requests go to the replica that holds the longest beginning of their prompt, unless it is
busier than the others.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Options", "PrefixRouter", "build"]

_WHERE = {"Options": "ggfw_ray.options", "PrefixRouter": "ggfw_ray.router", "build": "ggfw_ray.app"}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        from importlib import import_module

        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
