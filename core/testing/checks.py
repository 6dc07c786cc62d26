"""What all conformance checks share: rules in order, each told apart by name, each failure one sentence.

The checks of a kind are a class; its rules are methods, and the first sentence of a method's docstring is the rule.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from ggfw.descriptors import Descriptor, resolve
from ggfw.errors import said, with_place
from ggfw.records import dataclass

__all__ = ["Checks", "Finding", "NotApplicable", "failures"]

D = TypeVar("D", bound=Descriptor)


class NotApplicable(Exception):
    """Raised by a rule that has nothing to look at; the message says why."""


@dataclass(frozen=True)
class Finding:
    """What one rule found.

    Args:
        rule: its name.
        state: ``ok``, ``failed``, or ``skipped``: it had nothing to look at, or a rule that it rests on was not met.
        reason: one sentence, unless it is ok.
    """

    rule: str
    state: str
    reason: str = ""


class Checks(Generic[D]):
    """The rules of one kind, applied to one descriptor.

    Args:
        item: the descriptor.

    Attributes:
        kind: the descriptor's class.
        rules: names of the methods, in the order in which they run.
        gates: rules without which the later ones mean nothing.
    """

    kind: ClassVar[type[Descriptor]]
    rules: ClassVar[tuple[str, ...]] = ()
    gates: ClassVar[frozenset[str]] = frozenset({"descriptor", "load"})

    def __init__(self, item: D) -> None:
        self.item = item

    @classmethod
    def explained(cls) -> Mapping[str, str]:
        """Rule -> what it asks, one sentence."""
        texts = {rule: inspect.getdoc(getattr(cls, rule)) or "" for rule in cls.rules}
        return {rule: " ".join(text.partition("\n\n")[0].split()) for rule, text in texts.items()}

    def run(self) -> list[Finding]:
        """Apply all rules."""
        found: list[Finding] = []
        stopped = ""
        for rule in self.rules:
            if stopped:
                found.append(Finding(rule, "skipped", f"the rule {stopped} was not met"))
                continue
            found.append(_apply(rule, getattr(self, rule)))
            if found[-1].state != "ok" and rule in self.gates:
                stopped = rule
        return found

    def descriptor(self) -> None:
        """The descriptor has the right type, and every field of it is well formed."""
        assert isinstance(self.item, self.kind), (
            f"expected {self.kind.__name__}, got {type(self.item).__name__}"
        )
        problems = self.item.problems()
        assert not problems, "; ".join(problems)

    def sample(self) -> Any:
        """What the descriptor's ``sample`` gives, or None."""
        return None if self.item.sample is None else resolve(self.item.sample)()


def _apply(rule: str, check: Any) -> Finding:
    try:
        check()
    except NotApplicable as why:
        return Finding(rule, "skipped", str(why))
    except AssertionError as why:
        return Finding(rule, "failed", said(why) or "an assertion of the plugin's own failed")
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # a plugin may raise anything; that is a finding too
        return Finding(rule, "failed", with_place(exc))
    return Finding(rule, "ok")


def failures(item: Descriptor, found: list[Finding]) -> str:
    """All failures as one text, empty when there are none."""
    name = getattr(item, "name", type(item).__name__)
    return "; ".join(f"{name}: {f.rule}: {f.reason}" for f in found if f.state == "failed")
