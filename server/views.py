"""Models seen differently: one that is not ours to close, one with another chat template, one that is not loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from ggfw.chat.template import ChatTemplate
from ggfw.descriptors import resolve
from ggfw.engine import Engine
from ggfw.gguf import GGUF
from ggfw.graph.hparams import Hparams
from ggfw.library import Model
from ggfw.registry import default_registry
from ggfw.sampling import Params
from ggfw.tokenizer import Tokenizer

__all__ = ["glimpse", "model_of", "with_template"]

#: What a model works out once and what depends on its template.
_OF_TEMPLATE = ("template", "dialect", "info")


def model_of(engine: Engine) -> Model:
    """The :class:`ggfw.Model` of an engine that somebody else runs and closes."""
    model = Model.__new__(Model)
    model._closed = True  # so that it never closes the engine
    model.loaded, model.engine = engine.model, engine
    model.defaults = Params.from_metadata(engine.model.gguf.metadata)
    return model


def with_template(model: Model, source: str) -> Model:
    """The same model and engine under another chat template (Jinja), which also decides the dialect.

    The view must not outlive the model.
    """
    view = Model.__new__(Model)
    view.__dict__.update({k: v for k, v in model.__dict__.items() if k not in _OF_TEMPLATE})
    view._closed = True
    metadata = {**dict(model.gguf.metadata.items()), "tokenizer.chat_template": source}
    view.template = ChatTemplate.of(metadata, model.tokenizer)
    return view


@contextmanager
def glimpse(path: Path) -> Iterator[Model]:
    """A model's file in the shape of a model, while the context lasts: metadata, tokenizer, template, dialect and
    traits. No weight is read and nothing can be generated. Blocks; call it in a thread.

    Raises:
        GgfwError: the file is damaged, or nobody can run it.
    """
    with GGUF.open(path) as gguf:
        spec = resolve(default_registry().architecture_for(gguf.metadata).load)
        causal = spec.causal and bool(Hparams(gguf.metadata, gguf.architecture).get("attention.causal", True))
        model = Model.__new__(Model)
        model._closed = True
        model.loaded = SimpleNamespace(  # type: ignore[assignment]
            gguf=gguf,
            tokenizer=Tokenizer.from_metadata(gguf.metadata),
            architecture=SimpleNamespace(causal=causal, cacheable=causal and spec.cacheable),
            name=str(gguf.get("general.name", None) or path.stem),
        )
        yield model
