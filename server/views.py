"""Models seen differently: one that is not ours to close, or one with another chat template."""

from __future__ import annotations

from ggfw.chat.template import ChatTemplate
from ggfw.engine import Engine
from ggfw.library import Model
from ggfw.sampling import Params

__all__ = ["model_of", "with_template"]

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
