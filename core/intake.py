"""The way of a request into the engine: checked, given a handle, its text and, when it begins, its sampler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ggfw.arguments import flag, instance, text
from ggfw.cache import PAGE_SIZE, Cache
from ggfw.errors import ContextLengthExceeded, InvalidRequest, brief
from ggfw.handle import Handle
from ggfw.output import Output
from ggfw.request import Request, check_logprobs, check_max_tokens, check_timeout, with_seed
from ggfw.running import Running
from ggfw.sampling import Constraint, Params, SamplerFactory, StopStrings
from ggfw.sampling.constrained import ConstrainedSampler
from ggfw.sampling.constraint import Foreseeing, MaskedConstraint, own_constraint

if TYPE_CHECKING:
    from ggfw.descriptors import SamplerStage
    from ggfw.model import LoadedModel
    from ggfw.respelling import Respelling


class Intake:
    """See the module.

    Args:
        model: for which requests are.
        on_cancel: called when a handle is canceled.
        respelling: knows the tokens of conversations; None: prompts stay as they are.
    """

    def __init__(
        self, model: LoadedModel, on_cancel: Callable[[], None], respelling: Respelling | None = None
    ) -> None:
        self.model = model
        self._respelling = respelling
        self._on_cancel = on_cancel

    @cached_property
    def _samplers(self) -> SamplerFactory:
        """Made for the first request: the tokenizer may still be under way when the engine starts, or be unusable."""
        return SamplerFactory(self.model.tokenizer, _sampler_stages)

    def take(self, request: Request) -> Running:
        """Check a request and make it ready to wait; a seed that was left open is chosen.

        Raises:
            ContextLengthExceeded, InvalidRequest: see :meth:`ggfw.engine.Engine.submit`.
        """
        self._respell(request)
        limit = self._check(request)
        request.params = with_seed(request.params)
        setup = self._samplers.setup(
            request.params, ignore_eos=request.ignore_eos, n_logprobs=check_logprobs(request.logprobs)
        )
        handle = Handle(request.id, self._on_cancel)
        decoder = self.model.tokenizer.decoder(special=request.special_tokens)
        output = Output(decoder, StopStrings(request.stop), request.parser)
        return Running(request, handle, limit, output, setup)

    def _respell(self, request: Request) -> None:
        """Write a prompt in the tokens of the conversation that it goes on with, where they leave it room."""
        if self._respelling is None or not (request.of_text and request.cache_prompt):
            return
        request.of_text = False  # once is enough
        prompt = self._respelling.respell(request.cache_key, request.prompt)
        if len(prompt) < min(self.model.n_ctx, capacity(self.model.cache)):
            request.prompt = prompt

    def _check(self, request: Request) -> int:
        """Check a request; gives how many tokens it may draw."""
        model, n = self.model, len(request.prompt)
        wanted = check_max_tokens(request.max_tokens)
        request.timeout = check_timeout(request.timeout)
        _check_objects(request)
        if not (model.architecture.causal and model.architecture.cacheable):
            raise InvalidRequest(f"{model.name} makes embeddings and cannot generate text", param="model")
        if not model.n_vocab:
            raise InvalidRequest(f"{model.name} has no logits and cannot generate text", param="model")
        if not n:
            raise InvalidRequest("the prompt has no tokens; at least one is needed", param="prompt")
        n_ctx = min(model.n_ctx, capacity(model.cache))
        if n >= n_ctx:
            raise ContextLengthExceeded(n, n_ctx)
        if not model.architecture.chunkable and n > model.executor.max_rows:
            raise ContextLengthExceeded(n, model.executor.max_rows)
        if not 0 <= min(request.prompt) <= max(request.prompt) < model.n_vocab:
            bad = next(i for i in request.prompt if not 0 <= i < model.n_vocab)
            raise InvalidRequest(
                f"token id {brief(bad)} is not in the vocabulary of {model.n_vocab}", param="prompt"
            )
        biased = max(request.params.logit_bias, default=0)
        if biased >= model.n_vocab:
            raise InvalidRequest(
                f"token id {biased} is not in the vocabulary of {model.n_vocab}", param="logit_bias"
            )
        self._check_bans(request)
        return min(n_ctx - n, wanted if wanted is not None else n_ctx)

    def _check_bans(self, request: Request) -> None:
        """Refuse a request that leaves no token for the first draw: later ones have as many or more."""
        params, n_vocab = request.params, self.model.n_vocab
        if not any(bias == float("-inf") for bias in params.logit_bias.values()):
            return
        tokenizer = self.model.tokenizer
        banned = {token for token, bias in params.logit_bias.items() if bias == float("-inf")}
        banned |= {token for token in tokenizer.suppressed_ids if token < n_vocab}
        by_bias = len(banned)
        if params.min_tokens or request.ignore_eos:
            banned |= {token for token in tokenizer.eog_ids if token < n_vocab}
        if len(banned) < n_vocab:
            return
        why = "" if by_bias == n_vocab else (" and " + ("ignore_eos" if request.ignore_eos else "min_tokens"))
        raise InvalidRequest(
            f"logit_bias{why} rules out all {n_vocab} tokens of the vocabulary; leave at least one",
            "logit_bias",
        )

    def start(self, work: Running) -> None:
        """Give an admitted request its sampler: native where possible, else a host row."""
        request, setup, constraint = work.request, work.setup, own_constraint(work.request.constraint)
        native = setup.host_reason is None
        if isinstance(constraint, MaskedConstraint):
            chain: Any = None
            if native:
                chain = self.model.executor.new_sampler(replace(setup, n_logprobs=None), request.prompt)
            if hasattr(chain, "hold"):
                # The first draw is made in the step, and taken in when the constraint has been asked.
                chain.hold()
                work.native = chain
            else:
                chain = setup.sampler()
                chain.seed(request.prompt)
            work.host, work.masked = ConstrainedSampler(chain, constraint), constraint
            # Without the row, a draw would not have moved the generator, and there would be no log-probability.
            if native and request.params.is_greedy and work.logprobs is None:
                work.skips = constraint if isinstance(constraint, Foreseeing) else None
            return
        if constraint is None and native:
            work.native = self.model.executor.new_sampler(setup, request.prompt)
        if work.native is None:
            work.host = setup.sampler()
            work.host.seed(request.prompt)
            work.host.constrain(constraint)


def _check_objects(request: Request) -> None:
    """Refuse what is no constraint, or no key, before anything runs."""
    instance("params", request.params, Params, "a ggfw.Params")
    text("id", request.id)
    request.ignore_eos = flag("ignore_eos", request.ignore_eos)
    request.special_tokens = flag("special_tokens", request.special_tokens)
    parser = request.parser
    if parser is not None and not all(callable(getattr(parser, name, None)) for name in ("push", "finish")):
        raise InvalidRequest(
            f"the parser is {brief(parser)}; an object with push and finish was expected", param="parser"
        )
    if request.constraint is not None and not isinstance(request.constraint, Constraint):
        raise InvalidRequest(
            f"the constraint is {brief(request.constraint)}; an object with allows, accept, first_bytes and first_byte "
            "was expected (a regular expression, a JSON schema or a grammar is given as regex, schema or grammar)",
            param="constraint",
        )
    try:
        hash(request.cache_key)
    except TypeError:
        raise InvalidRequest(
            f"cache_key must be something that can be hashed, like a text, not {brief(request.cache_key)}",
            param="cache_key",
        ) from None


def capacity(cache: Cache) -> int:
    """Positions that one sequence can have at most, by the size of the pools."""
    return min((pool.n_pages * PAGE_SIZE for pool in cache.pools), default=1 << 62)


def _sampler_stages() -> Mapping[str, SamplerStage]:
    from ggfw.registry import default_registry

    return default_registry().sampler_stages
