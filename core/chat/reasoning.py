"""What a request says about reasoning: on or off, how much effort, how many tokens at most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ggfw.arguments import as_integer
from ggfw.errors import InvalidRequest, brief
from ggfw.records import dataclass

if TYPE_CHECKING:
    from ggfw.chat.dialect import Reasoning
    from ggfw.chat.template import ChatTemplate
    from ggfw.sampling import Constraint
    from ggfw.tokenizer import Tokenizer

#: Words for an effort, least first. The first one switches reasoning off.
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True)
class ReasoningOptions:
    """Reasoning as one request wants it; None leaves it to the template and the model.

    Args:
        think: switch it on or off. Off is said to templates that know a switch; a block that is opened all the same is
            closed at once.
        effort: one of EFFORTS, for templates that know efforts; ``none`` is the same as ``think=False``, another one
            switches reasoning on where the template has only a switch.
        budget: tokens that the block may have; then it is closed in the family's own way. 0 is the same as
            ``think=False``; -1 is no limit.

    Raises:
        InvalidRequest: an unknown effort, a malformed budget, or two options that contradict each other.
    """

    think: bool | None = None
    effort: str | None = None
    budget: int | None = None

    def __post_init__(self) -> None:
        if self.think is not None and not isinstance(self.think, bool):
            raise InvalidRequest(f"think must be true or false, not {brief(self.think)}", "think")
        if self.effort is not None and not (isinstance(self.effort, str) and self.effort in EFFORTS):
            raise InvalidRequest(
                f"reasoning_effort is {brief(self.effort)}; expected one of {', '.join(EFFORTS)}",
                "reasoning_effort",
            )
        budget = as_integer(self.budget)
        if self.budget is not None and (budget is None or budget < -1):
            raise InvalidRequest(
                f"reasoning_budget must be a number of tokens, or -1 for no limit, not {brief(self.budget)}",
                "reasoning_budget",
            )
        object.__setattr__(self, "budget", budget)
        if self.think and self.effort == "none":
            raise InvalidRequest('think is true, but reasoning_effort is "none"', "reasoning_effort")

    @property
    def switch(self) -> bool | None:
        """On, off, or not said."""
        if self.think is not None:
            return self.think
        if self.effort is not None:
            return self.effort != "none"
        return False if self.budget == 0 else None

    @property
    def limit(self) -> int | None:
        """Tokens that the block may have; None: any number."""
        if self.switch is False:
            return 0
        return None if self.budget in (None, -1) else self.budget

    def template_arguments(
        self, template: ChatTemplate, given: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The variables with which ``template`` is told, under those that the request gave itself."""
        out: dict[str, Any] = {}
        switch = self.switch
        if switch is not None:
            for name in ("enable_thinking", "thinking"):
                out[name] = switch
        if self.effort is not None and self.effort != "none":
            out["reasoning_effort"] = self.effort
        elif switch is False:
            out["reasoning_effort"] = template.capabilities.least_effort
        return {**{k: v for k, v in out.items() if v is not None}, **(given or {})}

    def limited(
        self, constraint: Constraint | None, tokenizer: Tokenizer, block: Reasoning | None
    ) -> Constraint | None:
        """``constraint``, closing the block when its tokens are used up; itself where there is no limit or no block."""
        if self.limit is None or block is None:
            return constraint
        from ggfw.constraints.budget import can_limit, limit_reasoning

        if not can_limit(constraint):
            if self.budget in (None, -1):
                return constraint
            raise InvalidRequest(
                "reasoning_budget cannot be combined with a constraint of one's own", "reasoning_budget"
            )
        return limit_reasoning(constraint, tokenizer, block, self.limit)
