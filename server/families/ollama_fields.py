"""Bodies of Ollama's generating endpoints, and their way into a generation."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, ClassVar

from pydantic import Field

from ggfw.constraints import Grammar
from ggfw.errors import InvalidRequest
from ggfw.library import Model
from ggfw.server.fields import Body, FlagHint, Messages, NumberHint, SamplingFields, ToolList, refuse
from ggfw.server.generation import Generation, with_system
from ggfw.server.infill import infill_prompt

#: Seconds after which "for ever" begins: a century, and a date that calendars still know.
LONGEST = 100 * 365 * 86400.0

_DURATION = re.compile(r"([+-]?)((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|ms|s|m|h))+")
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_UNIT = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class Options(SamplingFields):
    """``options``; unknown ones are ignored."""

    num_predict: int | None = None
    num_ctx: int | None = None
    stop: str | list[str | None] | None = None
    ignore_eos: bool | None = None
    # How a model is loaded and where it runs is the server's own business; num_keep is of contexts that shift.
    num_batch: NumberHint = None
    num_gpu: NumberHint = None
    main_gpu: NumberHint = None
    num_thread: NumberHint = None
    num_keep: NumberHint = None
    numa: FlagHint = None
    use_mmap: FlagHint = None
    use_mlock: FlagHint = None
    low_vram: FlagHint = None
    vocab_only: FlagHint = None
    f16_kv: FlagHint = None
    logits_all: FlagHint = None
    embedding_only: FlagHint = None

    def given(self) -> dict[str, Any]:
        """Options of :meth:`ggfw.Model.request`."""
        limit = self.num_predict
        return {
            **self.sampling(),
            # -1: without end; -2: until the context is full. The context is the end of both.
            "max_tokens": None if limit is not None and limit in (-1, -2) else limit,
            "stop": self.stop,
            "ignore_eos": self.ignore_eos,
        }


class OllamaBody(Body):
    """What chat and generate have in common."""

    renamed: ClassVar[dict[str, str]] = {"max_tokens": "num_predict", "reasoning_effort": "think"}

    model: str
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: Options | None = None
    keep_alive: float | str | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def seconds(self) -> float | None:
        """``keep_alive`` in seconds; negative: for ever; None: not given."""
        return seconds_of(self.keep_alive)

    @property
    def wants_thinking(self) -> bool:
        """Whether reasoning is asked for, by a switch or an effort."""
        thinking, effort = _think(self.think)
        return bool(thinking) or effort not in (None, "none")

    def _generation(self) -> Generation:
        options = self.options or Options()
        thinking, effort = _think(self.think)
        return Generation(
            thinking=thinking,
            effort=effort,
            num_ctx=options.num_ctx,
            options={
                **options.given(),
                "logprobs": (self.top_logprobs or 0) if self.logprobs else None,
                "grammar": _format(self.format),
            },
        )


class ChatBody(OllamaBody):
    """Body of ``POST /api/chat``."""

    messages: Messages | None = None
    tools: ToolList | None = None

    def generation(self) -> Generation:
        """What is asked for, in the engine's words."""
        out = self._generation()
        out.messages = [_message(message, n) for n, message in enumerate(self.messages or ())]
        out.tools = self.tools or None
        return out


class GenerateBody(OllamaBody):
    """Body of ``POST /api/generate``."""

    renamed: ClassVar[dict[str, str]] = {**OllamaBody.renamed, "messages": "prompt"}

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    raw: bool | None = None
    context: Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)] | None = None
    images: list[Any] | None = None
    width: int | None = None
    height: int | None = None
    steps: int | None = None

    def generation(self, model: Model) -> Generation:
        """What is asked for, in the engine's words.

        Raises:
            InvalidRequest: a field that cannot be honoured.
        """
        refuse(
            self,
            template="the file's own chat template is used; send raw: true with a prompt of your own",
            images="this model takes text only",
            width="it makes text only",
            height="it makes text only",
            steps="it makes text only",
        )
        out = self._generation()
        if self.raw and (self.system or self.context):
            name = "system" if self.system else "context"
            raise InvalidRequest(f"{name} cannot be combined with raw; write it into the prompt", name)
        prompt = self.prompt or ""
        if self.suffix:
            out.prompt = infill_prompt(model, prompt, self.suffix)
        elif self.raw:
            out.prompt = prompt
        else:
            out.messages = with_system([{"role": "user", "content": prompt}], self.system)
            out.context = self.context or ()
        return out


def seconds_of(given: float | str | None) -> float | None:
    """A duration: seconds, or text such as ``5m`` or ``1h30m``; negative: for ever.

    Raises:
        InvalidRequest: neither.
    """
    if given is None:
        return None
    if isinstance(given, str):
        text = given.strip()
        found = _DURATION.fullmatch(text)
        if found is None:
            number = float(text) if _NUMBER.fullmatch(text) else math.nan
        else:
            number = sum(float(part) * _UNIT[unit] for part, unit in _PART.findall(text))
            number = -number if found[1] == "-" else number
    else:
        number = float(given)
    if not math.isfinite(number):
        raise InvalidRequest(
            f"keep_alive is {given!r:.40}; expected seconds, or a duration such as '5m'", "keep_alive"
        )
    return number if 0 <= number < LONGEST else -1.0


def _think(given: bool | str | None) -> tuple[bool | None, str | None]:
    if isinstance(given, str):
        if given in ("true", "false"):
            return given == "true", None
        return None, given
    return given, None


def _format(given: str | dict[str, Any] | None) -> Grammar | None:
    if given is None or given == "":
        return None
    if given == "json":
        return Grammar.json_object("format")
    if isinstance(given, dict):
        return Grammar.json_schema(given, "format")
    raise InvalidRequest(f"format is {given!r:.40}; expected 'json' or a JSON schema", "format")


def _message(message: Any, n: int) -> Any:
    """In OpenAI's form, with all tool fields: what the model thought, what it called, what came back."""
    if not isinstance(message, dict):
        return message
    out = dict(message)
    if out.pop("images", None):
        raise InvalidRequest(f"messages[{n}] has images; this model takes text only", f"messages[{n}].images")
    if out.get("thinking"):
        out["reasoning_content"] = out.pop("thinking")
    if out.get("tool_name"):
        out.setdefault("name", out.pop("tool_name"))
    out.setdefault("content", "")
    return out
