"""``ggfw bench MODEL``: prompt and decode speed, through the engine or of the step loop alone."""

from __future__ import annotations

import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggfw.cli import terminal
from ggfw.cli.loading import COUNT, load_options, model_argument, split_load_options
from ggfw.cli.profiling import profile_option, profiling
from ggfw.cli.settings import setting, verb
from ggfw.errors import InvalidRequest
from ggfw.records import dataclass

if TYPE_CHECKING:
    from ggfw import Handle, Model

__all__ = ["bench_verb"]


@dataclass(frozen=True)
class Sample:
    """One repetition; counts and speeds are of all sequences together.

    Args:
        prompt_tokens: evaluated prompt tokens.
        generated_tokens: drawn tokens, the first one of each sequence included.
        ttft_ms: time to first token, median over the sequences.
        prefill_ms: until the last sequence had its first token.
        decode_ms: from then on, while all sequences were running.
        total_ms: the whole repetition.
        prefill_tokens_per_second: prompt tokens over prefill.
        generated_tokens_per_second: tokens after the first ones over decode; 0 when there are none.
    """

    prompt_tokens: int
    generated_tokens: int
    ttft_ms: float
    prefill_ms: float
    decode_ms: float
    total_ms: float
    prefill_tokens_per_second: float
    generated_tokens_per_second: float


def _sample(
    n_prompt: int, n_drawn: int, n_parallel: int, ttft: float, prefill: float, decode: float
) -> Sample:
    """A sample from counts over all sequences and seconds."""
    after_first = n_drawn - n_parallel
    return Sample(
        prompt_tokens=n_prompt,
        generated_tokens=n_drawn,
        ttft_ms=ttft * 1e3,
        prefill_ms=prefill * 1e3,
        decode_ms=decode * 1e3,
        total_ms=(prefill + decode) * 1e3,
        prefill_tokens_per_second=n_prompt / prefill if prefill > 0 else 0.0,
        generated_tokens_per_second=after_first / decode if decode > 0 and after_first > 0 else 0.0,
    )


class _Counts(click.ParamType):
    """Positive numbers separated by commas."""

    name = "N,N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            value = ",".join(map(str, value))
        return [COUNT.convert(part.strip(), param, ctx) for part in str(value).split(",")]


@verb("bench")
@model_argument(required=False)
@setting("-p", "--prompt-tokens", type=COUNT, default=512, help="Tokens of each prompt; default: 512.")
@setting(
    "-n", "--new-tokens", type=COUNT, default=128, help="Tokens to draw after each prompt; default: 128."
)
@setting("--parallel", type=_Counts(), default="1", help="Sequences at once, such as 1,4,16; default: 1.")
@setting(
    "--repeat", type=COUNT, default=3, help="Repetitions, of which the medians are reported; default: 3."
)
@setting("--raw", is_flag=True, help="Time the step loop alone, without engine, sampler and decoder.")
@setting("--json", "as_json", is_flag=True, help="Print JSON, with every repetition.")
@setting(
    "--serve",
    metavar="URL",
    help="Measure a running server (any with OpenAI's endpoints) through HTTP; MODEL is its name there.",
)
@setting("--busy", is_flag=True, help="Let another process use one core meanwhile.")
@setting(
    "--plot", metavar="FILE", help="Draw the speeds into FILE (.svg), with the spread of the repetitions."
)
@setting("--kernels", is_flag=True, help="Time the matrix products of one layer instead, one by one.")
@setting("--layer", type=click.IntRange(0), default=0, help="Layer for --kernels; default: 0.")
@profile_option
@load_options
def bench_verb(model: str | None, **options: Any) -> None:
    """Measure prompt and decode speed of MODEL (default: SmolLM2-135M-Instruct) on random tokens.

    The measurement goes through engine, sampler and decoder unless --raw is given. One repetition before the counted
    ones warms up.
    """
    from ggfw.cli.resolve import find_model

    plot = options["plot"]
    if plot is not None and (not plot.endswith(".svg") or options["kernels"]):
        raise click.UsageError(
            "--plot draws speeds of a model (not --kernels) into a file that ends with .svg"
        )
    if options["serve"]:
        from ggfw.cli.bench_serve import measure_server

        key = os.environ.get("GGFW_API_KEY")
        with _busy(options["busy"]):
            rows = [measure_server(options["serve"], key, model, n, options) for n in options["parallel"]]
        _report(rows, options, "through HTTP")
        return
    if options["kernels"]:
        from ggfw.cli.bench_kernels import measure_kernels, print_kernels

        path = find_model(model, options["models_dir"])
        repeat, layer = options["repeat"], options["layer"]
        with _busy(options["busy"]):
            found = measure_kernels(path, split_load_options(options), layer=layer, repeat=repeat)
        terminal.print_json(found) if options["as_json"] else print_kernels(found)
        return
    if options["profile"] and len(options["parallel"]) > 1:
        raise click.UsageError("--profile goes with one value of --parallel")
    path = find_model(model, options["models_dir"])
    loading = split_load_options(options)
    if max(options["parallel"]) > 1 and ("draft" in loading or loading.get("spec", "off") != "off"):
        raise click.UsageError(
            "--draft and --spec go with one sequence: several accept different numbers of guesses, so a step draws "
            "more for one than for another"
        )
    with _busy(options["busy"]):
        rows = [_measure(path, loading, n_parallel, options) for n_parallel in options["parallel"]]
    route = "the step loop alone (--raw)" if options["raw"] else "through engine, sampler and decoder"
    _report(rows, options, route + (", beside a busy process" if options["busy"] else ""))


@contextmanager
def _busy(wanted: bool) -> Iterator[None]:
    """Keep one core busy with another process while the block runs."""
    if not wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"], stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _report(rows: list[dict[str, Any]], options: dict[str, Any], route: str) -> None:
    """Print what was measured, and draw it where that was asked for."""
    _print(rows, options["as_json"], route)
    if options["plot"] is None:
        return
    try:
        Path(options["plot"]).write_text(_plot(rows, route), encoding="utf-8")
    except OSError as exc:
        raise InvalidRequest(f"{options['plot']} cannot be written: {exc.strerror}", "plot") from exc
    terminal.say(f"ggfw: {options['plot']} written")


def _plot(rows: list[dict[str, Any]], route: str) -> str:
    """The rows as a chart: prompt and decode speed for each number of sequences."""
    from ggfw.charts import Bar, Group, bars

    first = rows[0]
    machine = f"{first['backend']}, {first['threads']} threads, " if first["backend"] else ""
    groups = []
    for row in rows:
        measured = (
            ("prompt", row["prompt_tokens_per_second"], "prefill_tokens_per_second"),
            ("decode", row["decode_tokens_per_second"], "generated_tokens_per_second"),
        )
        values = [(name, median, [s[key] for s in row["samples"]]) for name, median, key in measured]
        found = [Bar(name, median, min(each), max(each)) for name, median, each in values if median]
        groups.append(Group(f"{row['parallel']} at once" if len(rows) > 1 else "1 sequence", found, "tok/s"))
    lengths = f"{first['prompt_tokens']} prompt and {first['new_tokens']} new tokens"
    return bars(first["model"], groups, facts=f"{machine}{lengths}, {route}", shared_scale=True)


def _print(rows: list[dict[str, Any]], as_json: bool, route: str) -> None:
    if as_json:
        terminal.print_json(rows)
        return
    first = rows[0]
    machine = f"backend {first['backend']}, {first['threads']} threads, " if first["backend"] else ""
    click.echo(f"{first['model']}: {machine}{route}")
    columns = ["parallel", "prompt", "new", "prompt tok/s", "decode tok/s", "ttft ms", "load ms", "peak MB"]
    terminal.print_table(
        columns,
        [
            [
                str(row["parallel"]),
                str(row["prompt_tokens"]),
                str(row["new_tokens"]),
                f"{row['prompt_tokens_per_second']:.1f}",
                f"{row['decode_tokens_per_second']:.1f}",
                f"{row['ttft_ms']:.1f}",
                # Of a server nobody here knows them.
                f"{row['load_ms']:.0f}" if row["load_ms"] else "",
                f"{row['peak_rss_bytes'] / 1e6:.0f}" if row["peak_rss_bytes"] else "",
            ]
            for row in rows
        ],
    )


def _measure(path: Path, loading: dict[str, Any], n_parallel: int, options: dict[str, Any]) -> dict[str, Any]:
    """Load the model for ``n_parallel`` sequences, warm up, and take the samples."""
    from ggfw.cache import PAGE_SIZE
    from ggfw.cli.answering import peak_rss
    from ggfw.cli.loading import load_model
    from ggfw.threads import default_threads

    n_prompt, n_new = options["prompt_tokens"], options["new_tokens"]
    spare = _steps_to_read(n_parallel, n_prompt, loading.get("ubatch", 512)) if n_parallel > 1 else 0
    ctx = -(-(n_prompt + n_new + spare) // PAGE_SIZE) * PAGE_SIZE  # whole pages, so that all sequences fit
    # What is measured is what a token costs; guesses would come true by accident, or repeat the prompt.
    spec = "auto" if "draft" in loading else "off"
    begin = time.perf_counter()
    more = {"n_parallel": n_parallel, "max_queue": n_parallel}  # all of them come at once
    with load_model(path, {"ctx": ctx, "spec": spec, **loading}, **more) as model:
        _check_counts(model, n_parallel, n_prompt + n_new, spare)
        model.tokenizer  # noqa: B018 -- the model is not ready before this is
        model.engine.scheduler.times.budget = math.inf  # prompts are not cut for those who draw already
        load_ms = (time.perf_counter() - begin) * 1e3
        once: Callable[..., Sample] = _raw_once if options["raw"] else _engine_once
        once(model, n_parallel, n_prompt, min(n_new, 2), spare)
        with profiling(options["profile"], model):
            samples = [once(model, n_parallel, n_prompt, n_new, spare) for _ in range(options["repeat"])]
        backend = model.info["backend"]
    return {
        "model": path.name,
        "backend": backend,
        "threads": loading.get("threads") or default_threads(),
        "parallel": n_parallel,
        "prompt_tokens": n_prompt,
        "new_tokens": n_new,
        "prompt_tokens_per_second": statistics.median(s.prefill_tokens_per_second for s in samples),
        "decode_tokens_per_second": statistics.median(s.generated_tokens_per_second for s in samples),
        "load_ms": load_ms,
        "ttft_ms": statistics.median(s.ttft_ms for s in samples),
        "peak_rss_bytes": peak_rss(),
        "mode": "raw" if options["raw"] else "engine",
        "samples": [asdict(sample) for sample in samples],
    }


def _check_counts(model: Model, n_parallel: int, n_positions: int, spare: int) -> None:
    """Refuse what would be counted wrongly: every step has to draw a token of each sequence until the last one ends.

    Raises:
        InvalidRequest: the model draws no tokens, a step has fewer rows than there are sequences, or the context (of
            ``--ctx`` or of the model) ends before ``n_positions + spare``.
    """
    if not (model.loaded.architecture.causal and model.loaded.n_vocab):
        raise InvalidRequest(f"{model.loaded.name} makes embeddings and cannot generate text", "model")
    max_rows = model.loaded.executor.max_rows
    if n_parallel > max_rows:
        raise InvalidRequest(
            f"{n_parallel} sequences at once need steps of {n_parallel} rows, not {max_rows}; raise --ubatch",
            "ubatch",
        )
    needed, n_ctx = n_positions + spare, model.loaded.n_ctx
    if needed > n_ctx:
        parts = f", {spare} of them drawn while the last prompts are read" if spare else ""
        raise InvalidRequest(
            f"the sequences need {needed} positions each{parts}, and the context holds {n_ctx}; give at least "
            f"{needed} (--ctx), or fewer tokens (-p, -n)",
            "ctx",
        )


def _steps_to_read(n_parallel: int, n_prompt: int, ubatch: int) -> int:
    """Steps in which the first sequences draw while the last prompts are read, at most.

    A prompt may end with a step of its own, and what is read beside others doubles from step to step in the beginning.
    """
    return 2 * -(-n_parallel * n_prompt // max(1, ubatch - n_parallel)) + ubatch.bit_length()


def _prompts(model: Model, n_parallel: int, n_prompt: int) -> list[list[int]]:
    """Prompts of random tokens, all different, so that no cache can help."""
    rng = random.Random()
    n_vocab = min(model.loaded.n_vocab, model.tokenizer.n_vocab)
    return [[rng.randrange(n_vocab) for _ in range(n_prompt)] for _ in range(n_parallel)]


def _engine_once(model: Model, n_parallel: int, n_prompt: int, n_new: int, spare: int) -> Sample:
    """One repetition with requests like a user's: default sampling, text decoded."""
    prompts = _prompts(model, n_parallel, n_prompt)
    limits = [n_new + spare] * (n_parallel - 1) + [n_new]  # so all run until the last one has its tokens
    requests = [
        model.request(prompt, max_tokens=limit, ignore_eos=True)
        for prompt, limit in zip(prompts, limits, strict=True)
    ]
    with model.engine.announce():  # else the first is read alone, and draws while the others are read
        handles = [model.submit(request) for request in requests]
    last = handles[-1].result()  # first come, first served: it is the last one to begin
    for handle in handles:
        handle.cancel()
    timings, after_first = last.timings, last.usage.completion_tokens - 1
    # While the last one was drawing, every step drew a token of all the others too.
    ttfts = [_ttft(handle) for handle in handles]
    drawn = after_first * n_parallel + n_parallel
    ttft = statistics.median(ttfts)
    return _sample(
        n_parallel * n_prompt, drawn, n_parallel, ttft / 1e3, timings.ttft / 1e3, timings.decode / 1e3
    )


def _ttft(handle: Handle) -> float:
    """Wait for the end of a request, canceled or not; returns its time to first token in milliseconds."""
    from ggfw import GenerationCanceled

    try:
        return handle.result().timings.ttft
    except GenerationCanceled as exc:
        return float(exc.partial.timings.ttft)


def _raw_once(model: Model, n_parallel: int, n_prompt: int, n_new: int, spare: int) -> Sample:
    """One repetition of the bare steps: prompts in chunks, then one row per sequence, tokens by argmax of nothing."""
    from ggfw.execute.batch import Batch, Segment

    executor, cache = model.loaded.executor, model.loaded.cache
    prompts = _prompts(model, n_parallel, n_prompt)
    sequences = [cache.sequence() for _ in prompts]
    try:
        for sequence in sequences:
            sequence.reserve(n_prompt + n_new)
        chunk = min(n_prompt, executor.max_rows)
        begin = time.perf_counter()
        firsts = []
        for sequence, prompt in zip(sequences, prompts, strict=True):
            for at in range(0, n_prompt, chunk):
                tokens = prompt[at : at + chunk]
                executor.step(Batch([Segment(sequence, tokens, int(at + chunk >= n_prompt), True)]))
            firsts.append(time.perf_counter() - begin)
        start = time.perf_counter()
        for i in range(n_new - 1):
            executor.step(
                Batch([Segment(s, [p[i % n_prompt]]) for s, p in zip(sequences, prompts, strict=True)])
            )
        end = time.perf_counter()
    finally:
        for sequence in sequences:
            sequence.close()
    ttft = statistics.median(firsts)
    return _sample(n_parallel * n_prompt, n_parallel * n_new, n_parallel, ttft, start - begin, end - start)
