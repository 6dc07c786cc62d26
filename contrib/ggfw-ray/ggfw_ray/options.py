"""What an application is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Options:
    """Settings of :func:`ggfw_ray.build`.

    Attributes:
        model: path of a GGUF file; the same path on every node.
        threads: of each replica, which are also the CPUs that Ray reserves for it.
        slots: requests that a replica runs at once; twice as many may be on their way to it.
        ctx: positions per request; None = the model's.
        min_replicas, max_replicas: between which Ray scales; the target is ``slots`` requests for each.
        downscale_delay_s: how long a replica stays without work; starting one costs reading the model again.
        retries: how often a request is sent anew when its replica dies before anything of the answer was passed on.
        stats_period_s: how often replicas say what they have cached.
        balance: a replica with the prefix is passed over when it has so many more requests than the emptiest one.
        load: further options of :func:`ggfw.load`.
        server: options of :func:`ggfw.server.create_app` (``api_keys``, ``defaults``, ...).
    """

    model: str
    threads: int = 1
    slots: int = 4
    ctx: int | None = None
    min_replicas: int = 1
    max_replicas: int = 1
    downscale_delay_s: float = 600.0
    retries: int = 3
    stats_period_s: float = 1.0
    balance: int = 4
    load: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
