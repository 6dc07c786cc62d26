"""Prometheus metrics of one server, under the names users of vLLM and llama.cpp will recognise."""

from __future__ import annotations

import platform
import threading
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
        self._lock = threading.Lock()

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

    def text(self, pool: Pool, *, llama_names: bool = False) -> bytes:
        """The exposition: counters and histograms, and how things stand now.

        Args:
            llama_names: also under llama-server's names, for dashboards that exist.
        """
        from prometheus_client import generate_latest

        collector = Now(pool, llama_names)
        with self._lock:
            self.registry.register(collector)
            try:
                return generate_latest(self.registry)
            finally:
                self.registry.unregister(collector)


class Now:
    """What the engines say when somebody asks.

    Args:
        pool: the models.
        llama_names: also under llama-server's names.
    """

    def __init__(self, pool: Pool, llama_names: bool = False) -> None:
        self.pool, self.llama_names = pool, llama_names

    def describe(self) -> list[Any]:
        """Nothing is collected at registration."""
        return []

    def collect(self) -> Iterable[Any]:
        """The state of every model."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        def gauge(name: str, text: str) -> Any:
            return GaugeMetricFamily(f"ggfw_{name}", text, labels=["model"])

        def counter(name: str, text: str) -> Any:
            return CounterMetricFamily(f"ggfw_{name}", text, labels=["model"])

        running = gauge("requests_running", "Requests that run")
        waiting = gauge("requests_waiting", "Requests in the queue")
        pages = gauge("kv_cache_usage_ratio", "Share of the cache's pages that running requests use")
        kept = gauge("prefix_cache_bytes", "Memory that the prefix cache keeps for later requests")
        loaded = gauge("model_loaded", "Whether the model is loaded")
        seconds = gauge("model_load_seconds", "What loading the model took")
        proposed = counter("spec_draft_tokens", "Tokens that speculation has proposed")
        accepted = counter("spec_accepted_tokens", "Of them, those that were right")
        preempted = counter("preemptions", "Running requests that had to make way")
        steps = HistogramMetricFamily("ggfw_step_seconds", "Steps of the engine", labels=["model"])
        build = GaugeMetricFamily("ggfw_build_info", "What this is", labels=["version", "backend", "cpu"])
        backends: set[str] = set()
        snapshots = []
        for entry in self.pool.rows():
            if entry.base is not None:
                continue
            label, model = [entry.id], entry.model
            loaded.add_metric(label, float(model is not None))
            if model is None:
                continue
            now = model.engine.metrics()
            snapshots.append((label, now))
            running.add_metric(label, now.n_running)
            waiting.add_metric(label, now.n_waiting)
            total = sum(pool.n_pages for pool in now.pools)
            pages.add_metric(label, sum(pool.n_used for pool in now.pools) / total if total else 0.0)
            kept.add_metric(label, now.prefix_bytes)
            seconds.add_metric(label, entry.load_seconds or model.loaded.load_ms * 1e-3)
            proposed.add_metric(label, now.drafts_proposed)
            accepted.add_metric(label, now.drafts_accepted)
            preempted.add_metric(label, now.preemptions)
            steps.add_metric(label, _cumulated(now.step_seconds), now.step_seconds.sum)
            backends.add(model.loaded.executor.name)
        build.add_metric([ggfw.__version__, ",".join(sorted(backends)), platform.machine()], 1)
        yield from (
            running,
            waiting,
            pages,
            kept,
            loaded,
            seconds,
            proposed,
            accepted,
            preempted,
            steps,
            build,
        )
        if self.llama_names:
            yield from _llama(snapshots)


def _cumulated(histogram: Any) -> list[tuple[str, float]]:
    """Buckets as Prometheus wants them."""
    out, total = [], 0
    for bound, n in zip((*histogram.bounds, float("inf")), histogram.buckets, strict=True):
        total += n
        out.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
    return out


def _llama(snapshots: list[Any]) -> Iterable[Any]:
    """The same figures under llama-server's names."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, text, read in (
        ("prompt_tokens", "Prompt tokens evaluated", lambda m: m.prompt_tokens),
        ("tokens_predicted", "Tokens drawn", lambda m: m.generated_tokens),
        ("n_decode", "Steps", lambda m: m.steps),
    ):
        family = CounterMetricFamily(f"llamacpp:{name}", text, labels=["model"])
        for label, now in snapshots:
            family.add_metric(label, read(now))
        yield family
    for name, text, read in (
        ("requests_processing", "Requests that run", lambda m: m.n_running),
        ("requests_deferred", "Requests in the queue", lambda m: m.n_waiting),
    ):
        gauge = GaugeMetricFamily(f"llamacpp:{name}", text, labels=["model"])
        for label, now in snapshots:
            gauge.add_metric(label, read(now))
        yield gauge
