"""What follows from the rules of a grammar: which are reachable, empty, endless, left-recursive, regular.

All of it is computed without recursion over rules, of which there may be thousands in a chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from ggfw.constraints.gbnf.nodes import EMPTY, Alt, Chars, Node, Ref, Repeat, Seq, Token, alt, seq
from ggfw.constraints.limits import MAX_DEPTH, depth
from ggfw.errors import InvalidRequest

T = TypeVar("T")
ROOT = "root"
Rules = dict[str, Node]


def cleaned(rules: Rules, param: str) -> Rules:
    """The rules that ``root`` needs, checked; without aliases, and without branches that never end.

    Raises:
        InvalidRequest: no ``root``, an undefined rule, left recursion, or no finite text is accepted.
    """
    rules = _reachable(rules, param)
    _refuse_left_recursion(rules, param)
    finite = _finite(rules)
    if ROOT not in finite:
        raise InvalidRequest(
            "the GBNF grammar accepts no text: every rule of 'root' goes on for ever, or asks for a character of "
            "an empty class",
            param,
        )
    rules = {name: _pruned(rules[name], finite) for name in rules if name in finite}
    aliases = _aliases(rules)
    rules = _reachable({name: _renamed(node, aliases) for name, node in rules.items()}, param)
    if depth(ROOT, lambda name: references(rules[name]), MAX_DEPTH) > MAX_DEPTH:
        raise InvalidRequest(
            f"the GBNF grammar's rules refer to each other more than {MAX_DEPTH} deep; inline some of them",
            param,
        )
    return rules


def references(node: Node) -> Iterator[str]:
    """Names of the rules in a node, in their order."""
    stack = [node]
    while stack:
        node = stack.pop()
        if isinstance(node, Ref):
            yield node.name
        elif isinstance(node, Seq | Alt):
            stack += reversed(node.items)
        elif isinstance(node, Repeat):
            stack.append(node.item)


def fixpoint(rules: Rules, start: T, value: Callable[[Node, Callable[[str], T]], T]) -> dict[str, T]:
    """The least solution of ``out[name] = value(rule, out)``, from ``start`` upwards; only what changes is redone."""
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, node in rules.items():
        for used in set(references(node)):
            users[used].append(name)
    out = dict.fromkeys(rules, start)
    waiting = dict.fromkeys(rules)
    while waiting:
        name = next(iter(waiting))
        del waiting[name]
        found = value(rules[name], out.__getitem__)
        if found != out[name]:
            out[name] = found
            waiting |= dict.fromkeys(users[name])
    return out


def is_nullable(node: Node, of: Callable[[str], bool]) -> bool:
    """Whether a node may be the empty text, given that of the rules."""
    if isinstance(node, Ref):
        return of(node.name)
    if isinstance(node, Seq):
        return all(is_nullable(item, of) for item in node.items)
    if isinstance(node, Alt):
        return any(is_nullable(item, of) for item in node.items)
    return isinstance(node, Repeat) and (node.least == 0 or is_nullable(node.item, of))


def regular(rules: Rules) -> set[str]:
    """Names of the rules that a regular expression can stand for: no recursion, no tokens."""
    out: set[str] = set()
    users: dict[str, list[str]] = {name: [] for name in rules}
    missing: dict[str, int] = {}
    for name, node in rules.items():
        used = set(references(node))
        missing[name] = len(used) + has_token(node)
        for one in used:
            users[one].append(name)
    ready = [name for name, n in missing.items() if n == 0]
    while ready:
        name = ready.pop()
        out.add(name)
        for user in users[name]:
            missing[user] -= 1
            if missing[user] == 0:
                ready.append(user)
    return out


def has_token(node: Node) -> bool:
    """Whether a token element stands in a node."""
    if isinstance(node, Seq | Alt):
        return any(map(has_token, node.items))
    return has_token(node.item) if isinstance(node, Repeat) else isinstance(node, Token)


# -- steps of cleaned -------------------------------------------------------------------------------------------------


def _reachable(rules: Rules, param: str) -> Rules:
    if ROOT not in rules:
        raise InvalidRequest("the GBNF grammar has no rule named 'root'", param)
    seen: Rules = {}
    waiting = [ROOT]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        if name not in rules:
            raise InvalidRequest(f"the GBNF grammar uses a rule {name!r} that it does not define", param)
        seen[name] = rules[name]
        waiting += references(rules[name])
    return seen


def _left_references(node: Node, nullable: Callable[[str], bool]) -> Iterator[str]:
    """Rules with which a text of ``node`` may begin."""
    if isinstance(node, Ref):
        yield node.name
    elif isinstance(node, Repeat):
        yield from _left_references(node.item, nullable)
    elif isinstance(node, Seq | Alt):
        for item in node.items:
            yield from _left_references(item, nullable)
            if isinstance(node, Seq) and not is_nullable(item, nullable):
                return


def _refuse_left_recursion(rules: Rules, param: str) -> None:
    nullable = fixpoint(rules, False, is_nullable)
    left = {name: list(_left_references(node, nullable.__getitem__)) for name, node in rules.items()}
    done: set[str] = set()
    for start in rules:
        if start in done:
            continue
        path, open_ = [start], {start}
        stack = [iter(left[start])]
        while stack:
            name = next(stack[-1], None)
            if name is None:
                stack.pop()
                last = path.pop()
                open_.discard(last)
                done.add(last)
            elif name in open_:
                circle = [*path[path.index(name) :], name]
                shown = " -> ".join(circle if len(circle) < 8 else [*circle[:4], "...", *circle[-2:]])
                raise InvalidRequest(
                    f"the GBNF grammar is left-recursive: rule {name!r} begins with itself ({shown}); "
                    "write the repetition with * or put the recursion behind another element",
                    param,
                )
            elif name not in done:
                path.append(name)
                open_.add(name)
                stack.append(iter(left[name]))


def _is_finite(node: Node, of: Callable[[str], bool]) -> bool:
    if isinstance(node, Ref):
        return of(node.name)
    if isinstance(node, Chars):
        return bool(node.ranges)
    if isinstance(node, Seq):
        return all(_is_finite(item, of) for item in node.items)
    if isinstance(node, Alt):
        return any(_is_finite(item, of) for item in node.items)
    return not isinstance(node, Repeat) or node.least == 0 or _is_finite(node.item, of)


def _finite(rules: Rules) -> set[str]:
    """Rules that accept at least one text."""
    return {name for name, finite in fixpoint(rules, False, _is_finite).items() if finite}


def _pruned(node: Node, finite: set[str]) -> Node:
    """A finite node without its branches that never end."""
    if isinstance(node, Seq):
        return seq([_pruned(item, finite) for item in node.items])
    if isinstance(node, Alt):
        return alt([_pruned(item, finite) for item in node.items if _is_finite(item, finite.__contains__)])
    if isinstance(node, Repeat):
        if not _is_finite(node.item, finite.__contains__):
            return EMPTY
        return Repeat(_pruned(node.item, finite), node.least, node.most)
    return node


def _aliases(rules: Rules) -> dict[str, str]:
    """Rules that are only another name, each with the rule it means; left recursion has been refused, so it ends."""
    out: dict[str, str] = {}
    for name in rules:
        chain = []
        while name not in out and isinstance(node := rules[name], Ref):
            chain.append(name)
            name = node.name
        for one in chain:
            out[one] = out.get(name, name)
    return out


def _renamed(node: Node, aliases: dict[str, str]) -> Node:
    if isinstance(node, Ref):
        return Ref(aliases.get(node.name, node.name))
    if isinstance(node, Seq | Alt):
        return type(node)(tuple(_renamed(item, aliases) for item in node.items))
    if isinstance(node, Repeat):
        return Repeat(_renamed(node.item, aliases), node.least, node.most)
    return node
