"""Prometheus metrics of one server, under the names users of vLLM and llama.cpp will recognise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import ggfw
from ggfw.result import Result

if TYPE_CHECKING:
    from ggfw.server.pool import Pool

#: Seconds; on processors a long prompt takes minutes.
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
#: Seconds between two tokens.
GAPS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Metrics:
    """Counters and histograms in a registry of their own; nothing is global."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"ggfw_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: Iterable[float] = SECONDS) -> Histogram:
            return Histogram(
                f"ggfw_{name}_seconds", text, ["model"], buckets=tuple(buckets), registry=self.registry
            )

        self._prompt = counter("prompt_tokens", "Prompt tokens of finished requests", "model")
        self._generated = counter("generation_tokens", "Tokens that were drawn", "model")
        self._queries = counter(
            "prefix_cache_queries", "Prompt tokens looked up in the prefix cache", "model"
        )
        self._hits = counter("prefix_cache_hits", "Prompt tokens found in the prefix cache", "model")
        self._success = counter("request_success", "Answers that ended well", "model", "finish_reason")
        self._errors = counter("request_errors", "Requests that ended in an error, or broke off", "code")
        self._http = counter("http_requests", "HTTP requests", "route", "method", "status")
        self._ttft = histogram("time_to_first_token", "From submission to the first token")
        self._gap = histogram("inter_token_latency", "Mean time between two tokens of an answer", GAPS)
        self._queue = histogram("request_queue", "Time in the queue")
        self._prefill = histogram("request_prefill", "Reading the prompt")
        self._decode = histogram("request_decode", "From the first to the last token")
        self._e2e = histogram("request_e2e", "From submission to the end")

    def answer(self, model: str, result: Result) -> None:
        """Count an answer that ended well."""
        t, used = result.timings, result.usage
        self._prompt.labels(model).inc(used.prompt_tokens)
        self._generated.labels(model).inc(used.completion_tokens)
        self._queries.labels(model).inc(used.prompt_tokens)
        self._hits.labels(model).inc(used.cached_tokens)
        self._success.labels(model, result.finish_reason).inc()
        self._queue.labels(model).observe(t.queue * 1e-3)
        self._e2e.labels(model).observe(t.total * 1e-3)
        if used.completion_tokens:
            self._ttft.labels(model).observe(t.ttft * 1e-3)
            self._prefill.labels(model).observe(t.prefill * 1e-3)
            self._decode.labels(model).observe(t.decode * 1e-3)
        if used.completion_tokens > 1:
            self._gap.labels(model).observe(t.decode * 1e-3 / (used.completion_tokens - 1))

    def embedded(self, model: str, n_tokens: int) -> None:
        """Count the tokens of an embedding."""
        self._prompt.labels(model).inc(n_tokens)

    def broken(self, model: str, reason: str) -> None:
        """Count an answer that was canceled or failed."""
        self._errors.labels(reason).inc()

    def refused(self, code: str) -> None:
        """Count a request that was answered with an error."""
        self._errors.labels(code).inc()

    def http(self, route: str, method: str, status: int) -> None:
        """Count an HTTP request."""
        self._http.labels(route, method, str(status)).inc()

    def text(self, pool: Pool) -> bytes:
        """The exposition: counters and histograms, and how things stand now."""
        from prometheus_client import generate_latest

        collector = Now(pool)
        self.registry.register(collector)
        try:
            return generate_latest(self.registry)
        finally:
            self.registry.unregister(collector)


class Now:
    """Gauges that are read when somebody asks."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def describe(self) -> list[Any]:
        """Nothing is collected at registration."""
        return []

    def collect(self) -> Iterable[Any]:
        """The state of every model."""
        from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

        def gauge(name: str, text: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"ggfw_{name}", text, labels=["model"])

        running = gauge("requests_running", "Requests that run")
        waiting = gauge("requests_waiting", "Requests in the queue")
        pages = gauge("kv_cache_usage_ratio", "Share of the cache's pages that are in use")
        loaded = gauge("model_loaded", "Whether the model is loaded")
        seconds = gauge("model_load_seconds", "What loading the model took")
        backends: dict[str, str] = {}
        for entry in self.pool.rows():
            model = entry.model
            loaded.add_metric([entry.id], float(model is not None))
            if model is None:
                continue
            engine = model.engine
            running.add_metric([entry.id], engine.n_running)
            waiting.add_metric([entry.id], engine.n_waiting)
            cache = model.loaded.cache
            total = sum(pool.n_pages for pool in cache.pools)
            pages.add_metric([entry.id], cache.n_pages_used() / total if total else 0.0)
            seconds.add_metric([entry.id], model.loaded.load_ms * 1e-3)
            backends[entry.id] = model.loaded.executor.name
        build = InfoMetricFamily("ggfw_build", "What this is")
        build.add_metric(
            [], {"version": ggfw.__version__, "backend": ",".join(sorted(set(backends.values())))}
        )
        return [running, waiting, pages, loaded, seconds, build]
