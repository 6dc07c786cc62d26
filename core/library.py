"""The library's face: :class:`Model`, which :func:`ggfw.load` gives."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from ggfw import arguments, asking
from ggfw.arguments import flag, integer, text
from ggfw.chat.dialect import Dialect
from ggfw.engine import Engine
from ggfw.errors import InvalidRequest, UnsupportedError, brief
from ggfw.evaluations import Evaluations
from ggfw.handle import Handle
from ggfw.request import Request, new_id, resolve_params, token_ids, with_seed
from ggfw.result import Result
from ggfw.sampling import Constraint, Params
from ggfw.stream import Stream

if TYPE_CHECKING:
    from ggfw.chat.skill_handle import SkillHandle
    from ggfw.chat.template import ChatTemplate, Prompt
    from ggfw.constraints import Compiler, Grammar
    from ggfw.gguf import GGUF
    from ggfw.graph import Hparams
    from ggfw.model import LoadedModel

T = TypeVar("T")
F32 = NDArray[np.float32]
Messages = Sequence[Mapping[str, Any]]
Log = Callable[[str, dict[str, Any]], None]


def check_callback(callback: Any) -> None:
    """Refuse what cannot be called, before anything runs.

    Raises:
        InvalidRequest: it cannot.
    """
    if callback is not None and not callable(callback):
        raise InvalidRequest(
            f"callback is {brief(callback)}; a function of one piece of text was expected", "callback"
        )


class Model(Evaluations):
    """A loaded model with its engine. Close it, or use it as a context manager. Safe in any thread.

    Each generating method takes these keyword arguments besides its own: ``max_tokens`` (None or -1: to the end of
    the context), ``stop`` (one or several strings), ``timeout`` (seconds), ``ignore_eos``, ``constraint``, ``logprobs``
    (how many of the likeliest tokens to give with the log-probability of each drawn one), and the fields of
    :class:`ggfw.sampling.Params` (``temperature``, ``top_k``, ``seed`` …). What is not given, or None, comes from the
    file's ``general.sampling.*``, then from llama.cpp's defaults, or from those of the system that ``sampling_profile``
    names (``golem``, ``gopherllm`` or a plugin's). What the answer must look like is said by one of ``schema`` (a JSON
    schema), ``json`` (True: any JSON object), ``regex``, ``choice`` (a list of texts), ``grammar`` (GBNF or Lark, or a
    :class:`ggfw.constraints.Grammar`), or by a ``constraint`` of one's own; reasoning stays free. The async twins
    (``agenerate``, ``astream``, ``achat``, ``achat_stream``, ``aembed``) take the same arguments; abandoning them
    cancels the request.

    Args:
        loaded: the loaded model; :meth:`close` closes it too.
        max_queue: requests that may wait.
        prefix_cache_mb, spec: see :func:`load`.
        draft: the loaded draft model; :meth:`close` closes it, too.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        max_queue: int = 64,
        prefix_cache_mb: int | None = None,
        spec: str = "auto",
        draft: LoadedModel | None = None,
    ) -> None:
        self._closed = True  # there is nothing to close yet
        self.loaded = loaded
        self.engine = Engine(
            loaded, max_queue=max_queue, prefix_cache_mb=prefix_cache_mb, spec=spec, draft=draft
        )
        self._closed = False
        self.defaults: Params = Params.from_metadata(loaded.gguf.metadata)

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """``general.name`` of the file, else its file name."""
        return self.loaded.name

    @property
    def gguf(self) -> GGUF:
        """The open file."""
        return self.loaded.gguf

    @property
    def hparams(self) -> Hparams:
        """The architecture's hyperparameters."""
        return self.loaded.hparams

    @property
    def n_ctx(self) -> int:
        """Positions a sequence may have."""
        return self.loaded.n_ctx

    @cached_property
    def info(self) -> dict[str, Any]:
        """Facts for display: name, architecture, n_ctx, n_ctx_train, n_vocab, backend, sizes, template, and why
        nothing is speculated (None: it is)."""
        gguf, loaded = self.loaded.gguf, self.loaded
        return {
            "name": self.name,
            "architecture": gguf.architecture,
            "path": None if gguf.path is None else str(gguf.path),
            "size_bytes": gguf.n_bytes,
            "n_params": sum(int(np.prod(t.shape)) for t in getattr(gguf, "tensors", {}).values()),
            "n_ctx": loaded.n_ctx,
            "n_ctx_train": gguf.arch_get("context_length"),
            "n_vocab": loaded.n_vocab,
            "n_parallel": self.engine.scheduler.n_parallel,
            "speculation_off": self.engine.speculator.off,
            "backend": loaded.executor.name,
            "chat_template": self.template.name,
            "load_ms": loaded.load_ms,
        }

    @cached_property
    def template(self) -> ChatTemplate:
        """The file's chat template, or the built-in one for its vocabulary."""
        from ggfw.chat.template import ChatTemplate

        return ChatTemplate.of(self.loaded.gguf.metadata, self.tokenizer)

    @cached_property
    def dialect(self) -> Dialect:
        """How this family writes reasoning and calls: the best matching plugin, else the generic dialect.

        A file without a chat template is judged by the built-in one that it gets.

        Raises:
            PluginError: the plugin's dialect cannot be made.
        """
        from ggfw.chat.dialect import make
        from ggfw.registry import default_registry

        try:
            descriptor = default_registry().dialect_for(self.template.judged(self.loaded.gguf.metadata))
        except UnsupportedError:
            return Dialect()
        return make(descriptor)

    # -- generating -----------------------------------------------------------------------------------------------

    def request(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str | None] | None = None,
        timeout: float | None = None,
        ignore_eos: bool = False,
        constraint: Constraint | None = None,
        schema: Mapping[str, Any] | bool | str | Grammar | None = None,
        grammar: str | Grammar | None = None,
        regex: str | None = None,
        json: bool = False,
        choice: Sequence[str] | None = None,
        logprobs: int | None = None,
        sampling_profile: str | None = None,
        parse_special: bool = False,
        special_tokens: bool = False,
        id: str | None = None,
        cache_prompt: bool = True,
        cache_key: Hashable | None = None,
        **sampling: Any,
    ) -> Request:
        """Build a request for a raw prompt.

        Args:
            prompt: text (BOS is added where the file asks for it) or token ids, taken as they are.
            schema, grammar, regex, json, choice: see :class:`Model`.
            parse_special: recognise control tokens in the text; off, text stays text.
            special_tokens: show control tokens in the answer.
            cache_prompt: use, and leave, evaluated prefixes; only requests with the same ``cache_key`` share them.
        """
        if isinstance(prompt, str):
            asking.check_length(self, prompt)
            ids = self.tokenizer.encode(prompt, parse_special=flag("parse_special", parse_special))
        else:
            ids = token_ids(prompt)
        return Request(
            ids,
            resolve_params(self._defaults_of(sampling_profile), sampling),
            max_tokens=max_tokens,
            stop=asking.stop_strings(stop),
            ignore_eos=flag("ignore_eos", ignore_eos),
            constraint=self._constraint(
                constraint,
                schema=schema,
                grammar=grammar,
                regex=regex,
                json=flag("json", json),
                choice=choice,
            ),
            timeout=timeout,
            special_tokens=flag("special_tokens", special_tokens),
            id=(None if id is None else text("id", id)) or new_id(),
            logprobs=logprobs,
            cache_prompt=flag("cache_prompt", cache_prompt),
            cache_key=cache_key,
            of_text=isinstance(prompt, str),
        )

    def _constraint(self, own: Constraint | None, **options: Any) -> Constraint | None:
        """The caller's own constraint, or what the options describe.

        Raises:
            InvalidRequest: more than one of all that is given.
        """
        given = [name for name, value in options.items() if value is not None and value is not False]
        if own is not None and given:
            raise InvalidRequest(f"constraint and {given[0]} cannot be combined; give one of them", given[0])
        if not given:
            return own
        from ggfw.constraints import grammar_option

        grammar = grammar_option(**options)
        return None if grammar is None else self.compiler.compile(grammar)

    @cached_property
    def compiler(self) -> Compiler:
        """Compiles grammars for this model's vocabulary."""
        from ggfw.constraints import Compiler

        return Compiler(self.tokenizer)

    def _defaults_of(self, profile_name: str | None) -> Params:
        """The file's recommendations over a profile's defaults."""
        if profile_name is None:
            return self.defaults
        from ggfw.registry import default_registry
        from ggfw.sampling.profiles import profile

        base = profile(profile_name, default_registry().sampler_stages)
        return Params.from_metadata(self.loaded.gguf.metadata, base)

    def chat_prompt(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """Render a conversation; see :meth:`ggfw.chat.template.ChatTemplate.render`.

        Args:
            template_args: more variables of the template; ``add_generation_prompt`` and ``continue_final_message`` may
                be among them.

        Raises:
            InvalidRequest: a variable of ``template_args`` has its own argument; besides the errors of ``render``.
        """
        return asking.chat_prompt(
            self,
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_args=template_args,
        )

    def chat_request(self, messages: Messages, **options: Any) -> Request:
        """Build a request for a conversation: rendered by the chat template, encoded with message text as text only.

        Args:
            messages: see :func:`ggfw.chat.messages.normalise`.
            options: those of :meth:`request`, and

                ``tools`` (definitions in OpenAI's form), ``tool_choice`` (``auto``, ``none``, ``required``, or an
                object that names a function) and ``parallel_tool_calls`` (False: one call at most);

                ``think``, ``reasoning_effort`` and ``reasoning_budget``: see
                :class:`ggfw.chat.reasoning.ReasoningOptions`;

                ``template_args`` (more variables of the template) and ``continue_final_message`` (go on with the last
                message, an assistant's; by default whenever it is one).

        Raises:
            InvalidRequest: malformed messages, tools or options, a tool choice that no tool fits.
            TemplateError: see :meth:`ggfw.chat.template.ChatTemplate.render`.
        """
        return asking.chat_request(self, messages, **options)

    def submit_chat(self, messages: Messages, *, skills: Any = None, **options: Any) -> Handle | SkillHandle:
        """Queue the answer to a conversation.

        Args:
            messages: as for :meth:`chat_request`.
            skills: what the model may load with the tool ``load_skill``: a :class:`ggfw.Skills`, a folder, or a list
                of folders. Its calls are answered on the way and never shown; usage counts all rounds. The tool is
                left out where the choice of tools excludes it, or the caller has one of that name.
            options: those of :meth:`chat_request`.

        Returns:
            The handle: iterate it, await it, or ask for its ``result()``.
        """
        return asking.submit_chat(self, messages, skills=skills, **options)

    def submit(self, request: Request) -> Handle:
        """Queue a request; see :meth:`ggfw.engine.Engine.submit`."""
        return self.engine.submit(request)

    def generate(self, prompt: str | Sequence[int], **options: Any) -> Result:
        """Continue a raw prompt and wait for the result."""
        return self._wait(self.submit(self.request(prompt, **options)))

    def chat(self, messages: Messages, **options: Any) -> Result:
        """Answer a conversation and wait for the result; takes the options of :meth:`submit_chat`."""
        return self._wait(self.submit_chat(messages, **options))

    def generate_choices(self, prompt: str | Sequence[int], n: int, **options: Any) -> list[Result]:
        """Continue a raw prompt in ``n`` ways; the prompt is evaluated once.

        Choice ``i`` has the seed ``seed + i``, so the first one is what :meth:`generate` gives, and the same seed gives
        the same choices. ``usage.prompt_tokens`` is that of the one prompt in each of them.
        """
        return self._wait_all(n, lambda given: self.request(prompt, **given), options)

    def chat_choices(self, messages: Messages, n: int, **options: Any) -> list[Result]:
        """Answer a conversation in ``n`` ways; see :meth:`generate_choices`."""
        return self._wait_all(n, lambda given: self.chat_request(messages, **given), options)

    def _wait_all(
        self, n: int, build: Callable[[dict[str, Any]], Request], options: dict[str, Any]
    ) -> list[Result]:
        n = integer("n", n, 1)
        self.engine.check_choices(n)
        first = build(options)
        first.params = with_seed(first.params)
        # Parsers and constraints remember what they have seen, so each choice is built anew.
        seeds = (first.params.for_choice(i).seed for i in range(1, n))
        handles = self.engine.submit_choices([first, *(build({**options, "seed": s}) for s in seeds)])
        try:
            return [handle.result() for handle in handles]
        finally:
            for handle in handles:
                handle.cancel()

    @overload
    def stream(self, prompt: str | Sequence[int], callback: None = None, **options: Any) -> Stream: ...

    @overload
    def stream(
        self, prompt: str | Sequence[int], callback: Callable[[str], object], **options: Any
    ) -> Result: ...

    def stream(
        self, prompt: str | Sequence[int], callback: Callable[[str], object] | None = None, **options: Any
    ) -> Stream | Result:
        """Continue a raw prompt piece by piece.

        Args:
            callback: called with each piece of text in the caller's thread; an exception in it stops the generation
                and is raised here.

        Returns:
            Without a callback a :class:`Stream` to iterate; with one the result, at the end.
        """
        check_callback(callback)
        return self._stream(self.submit(self.request(prompt, **options)), callback)

    @overload
    def chat_stream(self, messages: Messages, callback: None = None, **options: Any) -> Stream: ...

    @overload
    def chat_stream(
        self, messages: Messages, callback: Callable[[str], object], **options: Any
    ) -> Result: ...

    def chat_stream(
        self, messages: Messages, callback: Callable[[str], object] | None = None, **options: Any
    ) -> Stream | Result:
        """Answer a conversation piece by piece; like :meth:`stream`."""
        check_callback(callback)
        return self._stream(self.submit_chat(messages, **options), callback)

    @staticmethod
    def _stream(handle: Handle | SkillHandle, callback: Callable[[str], object] | None) -> Stream | Result:
        stream = Stream(handle)
        if callback is None:
            return stream
        with stream:
            for piece in stream:
                callback(piece)
        return stream.result()

    @staticmethod
    def _wait(handle: Handle | SkillHandle) -> Result:
        try:
            return handle.result()
        finally:
            handle.cancel()  # no effect at the end; after KeyboardInterrupt it frees the engine

    async def agenerate(self, prompt: str | Sequence[int], **options: Any) -> Result:
        """Async twin of :meth:`generate`."""
        return await self._await(self.submit(self.request(prompt, **options)))

    async def achat(self, messages: Messages, **options: Any) -> Result:
        """Async twin of :meth:`chat`."""
        return await self._await(self.submit_chat(messages, **options))

    def astream(self, prompt: str | Sequence[int], **options: Any) -> Stream:
        """Async twin of :meth:`stream`: ``async for piece in model.astream(…)``."""
        return Stream(self.submit(self.request(prompt, **options)))

    def achat_stream(self, messages: Messages, **options: Any) -> Stream:
        """Async twin of :meth:`chat_stream`."""
        return Stream(self.submit_chat(messages, **options))

    @staticmethod
    async def _await(handle: Handle | SkillHandle) -> Result:
        try:
            return await handle
        finally:
            handle.cancel()

    # -- the cache ------------------------------------------------------------------------------------------------

    def save_cache(
        self, path: str | os.PathLike[str], tokens: Sequence[int], *, cache_key: Hashable | None = None
    ) -> int:
        """Write what is evaluated of a conversation to a file, for :meth:`load_cache`.

        Args:
            path: where to; what stands there is replaced when all is written.
            tokens: of the conversation, for example a request's prompt with its result's ``token_ids``.
            cache_key: that of the requests which evaluated them.

        Returns:
            How many of the tokens the file covers.

        Raises:
            InvalidRequest: nothing is known of these tokens.
            OSError: the file cannot be written.
        """
        from ggfw.saving import take_out

        target = arguments.path("path", path)
        saved = self.engine.run(take_out(self.engine, token_ids(tokens, "tokens"), cache_key)).result()
        saved.write(target)
        return len(saved.tokens)

    def load_cache(self, path: str | os.PathLike[str], *, cache_key: Hashable | None = None) -> list[int]:
        """Take up what :meth:`save_cache` wrote, so that a request that goes on from there need not evaluate it.

        Returns:
            The tokens that are covered.

        Raises:
            CacheFileError: the file is damaged, or of another model, cache type, arithmetic or version.
            ContextLengthExceeded: this context is too short for it.
            OSError: the file cannot be read.
        """
        from ggfw.cache.saved import SavedPrefix
        from ggfw.saving import known_facts, take_in

        facts = self.engine.run(known_facts(self.engine)).result()
        saved = SavedPrefix.read(arguments.path("path", path), facts)
        self.engine.run(take_in(self.engine, saved, cache_key)).result()
        return saved.tokens

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Cancel what runs, end the engine's thread, free the model; idempotent."""
        if not self._closed:
            self._closed = True
            self.engine.close()
            self.loaded.close()

    def __del__(self) -> None:
        if not sys.is_finalizing() and not getattr(self, "_closed", True):
            self.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ggfw.Model {self.name!r}: {self.loaded.gguf.architecture}, context {self.n_ctx}>"
