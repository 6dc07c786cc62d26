"""What a fuzzer is, and the list of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True)
class Target:
    """One kind of input.

    Args:
        run: takes an input; comes back, or raises.
        seeds: inputs to begin with.
        errors: what ``run`` may raise: the right answer to a bad input.
        grows: MiB that a run may add to the process without being suspicious.
        seconds: of CPU that one input may take; hangs are seen by the driver.
        close: called at the end.
    """

    run: Callable[[bytes], None]
    seeds: Sequence[bytes] = ()
    errors: tuple[type[BaseException], ...] = ()
    grows: int = 64
    seconds: float = 5.0
    close: Callable[[], None] = lambda: None


#: Name -> ``module:function``; the function makes the target in the process that runs it.
TARGETS = {
    "gguf": "fuzz.targets.gguf:reader",
    "gguf-split": "fuzz.targets.gguf:split",
    "load": "fuzz.targets.load:target",
    "templates": "fuzz.targets.chat:templates",
    "dialects": "fuzz.targets.chat:dialects",
    "skills": "fuzz.targets.chat:skills",
    "schemas": "fuzz.targets.constraints:schemas",
    "regexes": "fuzz.targets.constraints:regexes",
    "gbnf": "fuzz.targets.constraints:gbnf",
    "lark": "fuzz.targets.constraints:lark",
    "tokenizer": "fuzz.targets.tokenizer:text",
    "vocabulary": "fuzz.targets.tokenizer:vocabulary",
    "http": "fuzz.targets.http:target",
    "plugins": "fuzz.targets.plugins:target",
    "files": "fuzz.targets.files:target",
    "caches": "fuzz.targets.caches:target",
    "batch": "fuzz.targets.batch:target",
}


def make(name: str) -> Target:
    """The target of a name."""
    module, _, function = TARGETS[name].partition(":")
    made: Target = getattr(import_module(module), function)()
    return made
