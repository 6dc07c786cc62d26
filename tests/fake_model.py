"""A scripted stand-in for a loaded model: chosen ids or logits, a real cache, and checks of the executor contract."""

from __future__ import annotations

import codecs
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ggfw.cache import PAGE_SIZE, Cache, PoolSpec
from ggfw.errors import GenerationError
from ggfw.execute.batch import Batch, StepResult, Wants
from ggfw.graph.hparams import Hparams

SPECIALS = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end_of_text|>",
)
EOG = ("</s>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end_of_text|>")


class FakeDecoder:
    def __init__(self, tokenizer: FakeTokenizer, special: bool) -> None:
        self._tokenizer, self._special = tokenizer, special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._utf8.decode(self._tokenizer.piece(token, self._special))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class FakeTokenizer:
    """Bytes are ids 0-255, then control tokens, then whatever pieces a test wants as single tokens."""

    def __init__(self, pieces: Sequence[str] = (), add_bos: bool = True) -> None:
        self.specials = {text: 256 + n for n, text in enumerate(SPECIALS)}
        self.tokens = [*SPECIALS, *pieces]
        self.n_vocab = 256 + len(self.tokens)
        self.bos_id, self.eos_id = self.specials["<s>"], self.specials["</s>"]
        self.add_bos = add_bos
        self.eog_ids = {self.specials[t] for t in EOG}
        self.suppressed_ids: tuple[int, ...] = ()

    def role(self, name: str) -> int | None:
        named = {"bos": "<s>", "eos": "</s>", "fim_pre": "<PRE>", "fim_suf": "<SUF>", "fim_mid": "<MID>"}
        return self.find(named.get(name, name))

    def id_of(self, text: str) -> int:
        return 256 + self.tokens.index(text)

    def piece(self, token: int, special: bool = True) -> bytes:
        if token < 256:
            return bytes([token])
        if token < 256 + len(SPECIALS) and not special:
            return b""
        return self.tokens[token - 256].encode()

    def pieces(self) -> list[bytes]:
        return [self.piece(token) for token in range(self.n_vocab)]

    def is_control(self, token: int) -> bool:
        return 256 <= token < 256 + len(SPECIALS)

    def is_mark(self, token: int) -> bool:
        return self.is_control(token)

    def find(self, text: str) -> int | None:
        return 256 + self.tokens.index(text) if text in self.tokens else None

    def is_eog(self, token: int) -> bool:
        return token in self.eog_ids

    def counted(self, text: str, most: int) -> int | None:
        return None  # every text is encoded

    def encode_parts(self, parts: Sequence[tuple[str, bool]], *, add_special: bool = True) -> list[int]:
        ids = [self.bos_id] if add_special and self.add_bos else []
        for text, parse in parts:
            while text:
                hit = next((s for s in self.specials if text.startswith(s)), None) if parse else None
                if hit:
                    ids.append(self.specials[hit])
                    text = text[len(hit) :]
                else:
                    ids += text[0].encode("utf-8", "surrogatepass")
                    text = text[1:]
        return ids[1:] if ids[:2] == [self.bos_id] * 2 else ids

    def encode(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self.encode_parts([(text, parse_special)], add_special=add_special)

    def text(self, token: int) -> str:
        return self.piece(token, True).decode("latin-1")

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return b"".join(self.piece(i, special) for i in ids).decode("utf-8", "replace")

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        return self.decode(ids, special=special)

    def decoder(self, *, special: bool = False) -> FakeDecoder:
        return FakeDecoder(self, special)


class FakeMemory:
    """Tokens by page and offset in place of K and V: what a prefix hit gives is what somebody has written."""

    def __init__(self, model: FakeModel) -> None:
        self.pages = [np.full((pool.n_pages, PAGE_SIZE), -1, np.int64) for pool in model.cache.pools]
        self.page_bytes = [8 * PAGE_SIZE for _ in model.cache.pools]
        self.state_bytes = 0

    def copy_page(self, pool: int, source: int, target: int) -> None:
        self.pages[pool][target] = self.pages[pool][source]

    def read_page(self, pool: int, page: int) -> np.ndarray:
        return self.pages[pool][page].view(np.uint8).copy()

    def write_page(self, pool: int, page: int, data: np.ndarray) -> None:
        self.pages[pool][page] = data.view(np.int64)

    def read_state(self, half: int) -> np.ndarray:
        return np.zeros(0, np.uint8)

    def write_state(self, half: int, data: np.ndarray) -> None:
        raise AssertionError("there is no state")


class NativeSampler:
    """Stands for the executor's own sampler: argmax."""


class FakeExecutor:
    """Answers by ``policy(tokens so far, length of the prompt) -> logits``; checks what the contract promises.

    Attributes:
        batches: per step [(tokens, n_outputs, prompt)] of every segment.
        n_fed: tokens evaluated in all.
    """

    name = "fake"

    def __init__(
        self, model: FakeModel, policy: Callable[[list[int], int], np.ndarray], native: bool
    ) -> None:
        self.n_vocab = model.n_vocab
        self.max_rows = model.max_rows
        self.max_outputs = model.max_rows
        self._policy, self._native = policy, native
        self.memory = FakeMemory(model)
        self._prompts: set[tuple[int, ...]] = set()  # that were answered, to know where an answer begins
        self.batches: list[list[tuple[list[int], int, bool]]] = []
        self.n_fed = 0
        self.delay = 0.0
        self.gate: threading.Event | None = None
        self.fail: Exception | None = None
        self._abort = threading.Event()
        self._busy = threading.Lock()

    def step(self, batch: Batch) -> StepResult:
        assert self._busy.acquire(blocking=False), "two threads in step()"
        try:
            return self._step(batch)
        finally:
            self._busy.release()

    def _step(self, batch: Batch) -> StepResult:
        self._abort.clear()
        assert batch.segments
        assert len({id(s.sequence) for s in batch.segments}) == len(batch.segments)
        assert sum(len(s.tokens) for s in batch.segments) <= self.max_rows
        assert sum(s.n_outputs for s in batch.segments) <= self.max_outputs
        self.batches.append([(list(s.tokens), s.n_outputs, s.prompt) for s in batch.segments])
        if self.gate is not None:
            self.gate.wait()
        if self.delay and self._abort.wait(self.delay):
            raise GenerationError("the step was aborted")
        if self._abort.is_set():
            raise GenerationError("the step was aborted")
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error
        rows: list[np.ndarray] = []
        sampled: list[int | None] = []
        for segment in batch.segments:
            sequence = segment.sequence
            assert segment.tokens
            n = sequence.n_positions
            assert len(sequence.tables[0]) * PAGE_SIZE >= n + len(segment.tokens), "not reserved"
            table, pages = sequence.tables[0], self.memory.pages[0]
            history = [int(pages[table[i // PAGE_SIZE], i % PAGE_SIZE]) for i in range(n)]
            assert -1 not in history, "the sequence skipped positions"
            for i, token in enumerate(segment.tokens, n):
                pages[table[i // PAGE_SIZE], i % PAGE_SIZE] = token
            first = len(segment.tokens) - segment.n_outputs
            picked = None
            for i, token in enumerate(segment.tokens):
                history.append(token)
                if i >= first:
                    if segment.prompt:
                        self._prompts.add(tuple(history))
                    lengths = (len(p) for p in self._prompts if history[: len(p)] == list(p))
                    n_prompt = max(lengths, default=0)
                    row = np.asarray(self._policy(list(history), n_prompt), dtype=np.float32)
                    rows.append(row)
                    if isinstance(segment.sampler, NativeSampler):
                        picked = int(np.nanargmax(row)) if np.isfinite(row).any() else -1
            sequence.advance(len(segment.tokens))
            self.n_fed += len(segment.tokens)
            sampled.append(picked if segment.n_outputs else None)
        out = np.stack(rows) if rows else np.zeros((0, self.n_vocab), np.float32)
        if batch.wants & Wants.HIDDEN:
            return StepResult(hidden=out[:, :8].copy(), sampled=sampled)
        return StepResult(logits=out, sampled=sampled)

    def abort(self) -> None:
        self._abort.set()

    def new_sampler(self, setup: Any, prompt: list[int]) -> Any:
        return NativeSampler() if self._native else None

    def close(self) -> None:
        pass


class FakeModel:
    """Has the attributes of ``ggfw.model.LoadedModel`` that the engine uses.

    Args:
        script: ids that every sequence continues its prompt with (``scripts``: by prompt text instead); after them,
            the end token, or, with ``endless``, the letter ``x`` for ever.
        policy: (tokens so far, length of the prompt) -> logits, instead of a script.
    """

    def __init__(
        self,
        script: Sequence[int] | str = (),
        *,
        scripts: dict[str, Sequence[int] | str] | None = None,
        policy: Callable[[list[int], int], np.ndarray] | None = None,
        pieces: Sequence[str] = (),
        n_ctx: int = 256,
        n_parallel: int = 4,
        max_rows: int = 64,
        native: bool = False,
        endless: bool = False,
        add_bos: bool = True,
        template: str | None = None,
        metadata: dict[str, Any] | None = None,
        causal: bool = True,
        chunkable: bool = True,
        cacheable: bool = True,
    ) -> None:
        self.tokenizer = FakeTokenizer(pieces, add_bos)
        self.n_vocab = self.tokenizer.n_vocab
        self.n_ctx, self.n_parallel, self.max_rows = n_ctx, n_parallel, max_rows
        self.name = "fake"
        self.load_ms = 1.5
        values = {"general.architecture": "fake", "general.name": "fake", **(metadata or {})}
        if template is not None:
            values["tokenizer.chat_template"] = template
        self.gguf = SimpleNamespace(
            metadata=values, get=values.get, architecture="fake", arch_get=lambda k, d=None: values.get(f"fake.{k}", d),
            path=None, n_bytes=0, source="fake", close=lambda: None,
        )  # fmt: skip
        self.hparams = Hparams({"fake.context_length": n_ctx, "fake.embedding_length": 8, **values}, "fake")
        self.graph = SimpleNamespace(pooled=None)
        self.architecture = SimpleNamespace(causal=causal, chunkable=chunkable, cacheable=cacheable)
        self.cache = Cache([PoolSpec((0,), 1, 1, 1)], n_ctx * n_parallel)
        self._scripts = {k: self._ids(v) for k, v in (scripts or {}).items()}
        self._script = self._ids(script)
        self._endless = endless
        self.executor = FakeExecutor(self, policy or self._follow, native)
        self.closed = False

    def _ids(self, script: Sequence[int] | str) -> list[int]:
        return self.tokenizer.encode(script, add_special=False) if isinstance(script, str) else list(script)

    def _follow(self, tokens: list[int], n_prompt: int) -> np.ndarray:
        """One-hot logits for the scripted next token."""
        script = self._script
        if self._scripts:
            text = self.tokenizer.decode(tokens[:n_prompt], special=True)
            script = next((s for key, s in self._scripts.items() if key in text), script)
        at = len(tokens) - n_prompt
        token = script[at] if at < len(script) else ord("x") if self._endless else self.tokenizer.eos_id
        logits = np.full(self.n_vocab, -30.0, np.float32)
        logits[token] = 30.0
        return logits

    def close(self) -> None:
        self.closed = True


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Poll until ``condition`` holds; fail after ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.002)
