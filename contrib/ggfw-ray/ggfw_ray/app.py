"""The application for ``serve.run``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from ggfw_ray.ingress import Ingress
from ggfw_ray.options import Options
from ggfw_ray.replica import Replica
from ggfw_ray.router import PrefixRouter


def build(options: Options | str, *, model: Any = None, **settings: Any) -> Any:
    """Make an application of an ingress and replicas of one model.

    Args:
        options: the settings, or the path of a model.
        model: a callable that makes each replica's model instead of loading the file, for tests.
        settings: fields of :class:`Options`.

    Returns:
        What ``ray.serve.run`` takes.
    """
    options = replace(options, **settings) if isinstance(options, Options) else Options(options, **settings)
    scaling = AutoscalingConfig(
        min_replicas=options.min_replicas,
        max_replicas=options.max_replicas,
        target_ongoing_requests=options.slots,
        downscale_delay_s=options.downscale_delay_s,
    )
    routing = RequestRouterConfig(
        request_router_class=PrefixRouter,
        request_router_kwargs={"balance": options.balance},
        request_routing_stats_period_s=options.stats_period_s,
        request_routing_stats_timeout_s=max(5.0, options.stats_period_s),
    )
    fixed = options.min_replicas == options.max_replicas
    replicas = serve.deployment(Replica).options(
        name="ggfw",
        **({"num_replicas": options.min_replicas} if fixed else {"autoscaling_config": scaling}),
        request_router_config=routing,
        ray_actor_options={"num_cpus": options.threads},
        max_ongoing_requests=2 * options.slots,
        health_check_period_s=5,
        graceful_shutdown_timeout_s=40,
    )
    ingress = serve.deployment(Ingress).options(
        name="ingress", ray_actor_options={"num_cpus": 0}, max_ongoing_requests=10_000
    )
    return ingress.bind(replicas.bind(options, model), options)
