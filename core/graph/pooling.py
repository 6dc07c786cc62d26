"""One vector of a text: what a file says about pooling, and the output of models that are made for it."""

from __future__ import annotations

from ggfw.errors import ModelFileError
from ggfw.graph.builder import Graph
from ggfw.graph.hparams import Hparams
from ggfw.graph.tensor import Tensor
from ggfw.graph.weights import Weights

__all__ = ["pooled", "pooling"]

#: Values of ``pooling_type``: the hidden states as they are, their mean, one of them, or scores of a classifier.
KINDS = {0: "", 1: "mean", 2: "first", 3: "last", 4: "rank"}


def pooling(hp: Hparams, key: str = "pooling_type") -> str:
    """Return mean, first, last or rank; "" where the file does not say, or says none.

    Raises:
        ModelFileError: a number that stands for nothing.
    """
    number = hp.get(key, 0)
    if number not in KINDS:
        raise ModelFileError(f"{hp.architecture}.{key} is {number!r}; expected one of {sorted(KINDS)}")
    return KINDS[number]


def pooled(g: Graph, hp: Hparams, w: Weights, hidden: Tensor) -> Tensor | None:
    """Pool ``hidden`` as the file says and apply what stands after it; (n,) per sequence, None where it says none.

    After it: the dense layers of sentence-transformers (``dense_2``, ``dense_3``); of a reranker, the classifier
    Wout tanh(Wcls x + b) + b' over the first row (the last one with causal attention, or what
    ``classifier.pooling_type`` says), in which either matrix may be absent. Its result is a score per class.
    """
    kind = pooling(hp)
    if kind == "rank":
        row = pooling(hp, "classifier.pooling_type") or ("last" if g.causal else "first")
        x = g.pool(hidden, row)
        if "cls" in w:
            x = g.tanh(g.linear(x, w["cls"], w.get("cls.bias")))
        if "cls.output" in w:
            x = g.linear(x, w["cls.output"], w.get("cls.output.bias"))
        return x
    if not kind:
        return None
    x = g.pool(hidden, kind)
    for name in ("dense_2", "dense_3"):
        if name in w:
            x = g.linear(x, w[name], w.get(f"{name}.bias"))
    return x
