"""Conformance of architectures: a tiny random file, on both executors, whole and in pieces."""

from __future__ import annotations

from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

from ggfw.descriptors import ArchitectureSpec, resolve
from ggfw.errors import GgfwError
from ggfw.gguf import GGUF
from ggfw.graph import Architecture, Graph, Hparams, RunConfig, Weights
from ggfw.graph.weights import WeightRef
from ggfw.model import REFERENCE, Described
from ggfw.testing.checks import Checks, NotApplicable
from ggfw.testing.models import PROMPTS, compare_executors, error, open_model, rows
from ggfw.testing.tiny import registry_with, tiny_gguf

__all__ = ["ArchitectureChecks"]

#: Relative L2 error that float32 arithmetic in another order may make of a tiny float32 model.
F32_ERROR = 1e-4
#: Sizes of the files made here: those of :func:`tiny_gguf`.
N_EMBD, N_HEAD, N_HEAD_KV, N_FF, N_CTX = 64, 4, 2, 96, 256
_D, _Q, _K = N_EMBD // N_HEAD, N_EMBD, N_EMBD // N_HEAD * N_HEAD_KV

#: Shapes of tensors with usual names that Llama lacks, without ``blk.N.``; a ``.bias`` has the rows of its matrix.
USUAL: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            "attn_norm", "attn_norm_2", "ffn_norm", "post_attention_norm", "post_ffw_norm", "attn_post_norm",
            "layer_output_norm", "output_norm", "token_embd_norm", "attn_output_norm", "attn_sub_norm",
        ),
        (N_EMBD,),
    ),
    "ffn_sub_norm": (N_FF,), "attn_q_norm": (_D,), "attn_k_norm": (_D,),
    "attn_q": (_Q, N_EMBD), "attn_k": (_K, N_EMBD), "attn_v": (_K, N_EMBD), "attn_output": (N_EMBD, _Q),
    "attn_qkv": (_Q + 2 * _K, N_EMBD),
    "ffn_gate": (N_FF, N_EMBD), "ffn_up": (N_FF, N_EMBD), "ffn_down": (N_EMBD, N_FF),
    "position_embd": (N_CTX, N_EMBD),
}  # fmt: skip


class ArchitectureChecks(Checks[ArchitectureSpec]):
    """See the methods."""

    kind = ArchitectureSpec
    rules = (
        "descriptor", "load", "names", "traits", "match", "file", "graph", "executors", "chunks", "company", "decode",
    )  # fmt: skip
    gates = frozenset({"descriptor", "load", "file", "graph"})

    def load(self) -> None:
        """``load`` gives a subclass of ``ggfw.graph.Architecture`` with a ``build`` of its own."""
        cls = resolve(self.item.load)
        assert isinstance(cls, type) and issubclass(cls, Architecture), (
            f"load gives {cls!r}, expected a subclass of ggfw.graph.Architecture"
        )
        assert cls.build is not Architecture.build, f"{cls.__name__} has no build of its own"
        self._cls = cls

    def names(self) -> None:
        """The class serves the names of the descriptor, where it states names at all."""
        stated, served = tuple(self._cls.gguf_names), tuple(self.item.gguf_names)
        assert not stated or stated == served, f"the descriptor serves {served}, the class says {stated}"

    def traits(self) -> None:
        """``causal``, ``chunkable`` and ``cacheable`` are True or False."""
        for trait in ("causal", "chunkable", "cacheable"):
            assert isinstance(getattr(self._cls, trait), bool), f"{trait} must be True or False"

    def match(self) -> None:
        """``match`` gives a whole number of 0 or more, for any file."""
        if self.item.match is None:
            raise NotApplicable("it serves files by their names alone: the spec has no match")
        for metadata in ({}, {"general.architecture": "another"}):
            score = self.item.match(metadata)
            assert isinstance(score, int) and score >= 0, (
                f"match({metadata}) gives {score!r}, expected 0 or more"
            )

    def file(self) -> None:
        """There is a tiny file of this architecture: ``sample`` gives one, or ``build`` asks for usual tensors only."""
        self._data = self._file()

    def graph(self) -> None:
        """``build`` describes a graph for the file, and all tensors of a ``sample`` are used."""
        with GGUF.open(self._data) as gguf:
            described = Described(gguf, RunConfig(N_CTX), self._registry)
            unused = described.weights.unused() if self.item.sample is not None else []
        assert not unused, f"build never asks for {', '.join(unused[:5])} of its own sample file"

    def executors(self) -> None:
        """The native executor gives the same values as the exact one."""
        compare_executors(self._data, self._registry, 2e-3 if self._quantised else F32_ERROR)

    def chunks(self) -> None:
        """Prompts that are read in pieces give the values of prompts that are read whole."""
        if not self._chunkable:
            raise NotApplicable("prompts are always read whole")
        with self._open() as model:
            whole = rows(model)
            for chunk in (1, 3):
                self._same(whole, rows(model, chunk=chunk), f"pieces of {chunk} tokens")

    def company(self) -> None:
        """Several prompts in one step give the values that each gives alone."""
        with self._open() as model:
            self._same(rows(model), rows(model, together=True), "other prompts in the same step")

    def decode(self) -> None:
        """Tokens that are generated one by one continue the prompt as the exact executor continues it."""
        if not self._chunkable:
            raise NotApplicable("prompts are always read whole")
        found = []
        for backend in (REFERENCE, None):
            with self._open(backend) as model:
                if not model.loaded.n_vocab:
                    raise NotApplicable("there are no logits")
                ids = model.greedy(PROMPTS[0], 6)
                found.append((ids, model.logits_many([[*PROMPTS[0], *ids]])[0]))
        (wanted, exact), (got, _) = found
        at = next((i for i, (a, b) in enumerate(zip(wanted, got, strict=True)) if a != b), None)
        if at is not None:  # a near tie may fall either way
            row = exact[len(PROMPTS[0]) - 1 + at]
            assert abs(row[wanted[at]] - row[got[at]]) < 1e-2, (
                f"token {at} is {got[at]}, expected {wanted[at]}"
            )

    # -- the file --------------------------------------------------------------------------------------------------

    @cached_property
    def _registry(self) -> Any:
        return registry_with(self.item)

    @cached_property
    def _quantised(self) -> bool:
        with GGUF.open(self._data) as gguf:
            return any(t.ggml_type != 0 for t in gguf.tensors.values() if len(t.shape) > 1)

    @cached_property
    def _chunkable(self) -> bool:
        with self._open(REFERENCE) as model:
            return bool(model.loaded.architecture.chunkable)

    def _open(self, backend: str | None = None) -> Any:
        return open_model(self._data, self._registry, backend)

    def _same(self, wanted: list[np.ndarray], got: list[np.ndarray], what: str) -> None:
        found = error(got, wanted)
        most = (
            2e-2 if self._quantised else F32_ERROR
        )  # quantised rows round differently in prompts and in decoding
        assert found <= most, (
            f"{what} change the values by {found:.2g} (relative L2), at most {most:g} is expected"
        )

    def _file(self) -> Any:
        if self.item.sample is not None:
            return self.sample()
        label = self.item.gguf_names[0]
        with GGUF.open(tiny_gguf(label)) as gguf:
            tensors: dict[str, Any] = dict(gguf.tensors)
            metadata = dict(gguf.metadata)
            asked = _Growing(tensors)
            try:
                self._cls().build(Graph(), Hparams(metadata, label), asked, RunConfig(N_CTX))
            except GgfwError as exc:
                raise NotApplicable(
                    f"no tiny file can be made up ({exc}); give the descriptor a sample, a function that returns one "
                    "(ggfw.testing.tiny_gguf helps)"
                ) from exc
            added = {name: t.shape for name, t in tensors.items() if name not in gguf.tensors}
            unused = dict.fromkeys(asked.unused())
        return tiny_gguf(label, tensors={**unused, **added})


class _Growing(Weights):
    """Tensors that come into being when a ``build`` asks for them, as far as their names are usual."""

    def block(self, i: int) -> _Growing:
        return _Growing(self._tensors, f"{self._prefix}blk.{i}.", self._asked)

    def __getitem__(self, name: str) -> WeightRef:
        found = self.get(name)
        if found is not None:
            return found
        bare, _, suffix = name.partition(".")
        shape = USUAL.get(bare)
        if shape is not None and suffix in ("", "weight", "bias"):
            full = f"{self._prefix}{bare}.{suffix or 'weight'}"
            self._tensors[full] = SimpleNamespace(shape=shape[:1] if suffix == "bias" else shape, ggml_type=0)  # type: ignore[index]
        return super().__getitem__(name)
