"""Templates for files that bring none, chosen by the control tokens their vocabulary has."""

from __future__ import annotations

from collections.abc import Callable

from ggfw.records import dataclass

_CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + (m.content | trim) + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)

# Gemma has no system role: the text goes in front of the first user turn.
_GEMMA = (
    "{{ bos_token }}{% set ns = namespace(system='') %}"
    "{% for m in messages %}{% if m.role == 'system' %}{% set ns.system = ns.system + (m.content | trim) + '\\n\\n' %}"
    "{% else %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else 'user') + '\\n'"
    " + (ns.system if m.role != 'assistant' else '') + (m.content | trim) + '<end_of_turn>\\n' }}"
    "{% if m.role != 'assistant' %}{% set ns.system = '' %}{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)

_MISTRAL = (
    "{{ bos_token }}{% set ns = namespace(system='') %}"
    "{% for m in messages %}{% if m.role == 'system' %}{% set ns.system = ns.system + m.content + '\\n\\n' %}"
    "{% elif m.role == 'assistant' %}{{ ' ' + (m.content | trim) + eos_token }}"
    "{% else %}{{ '[INST] ' + ns.system + m.content + ' [/INST]' }}{% set ns.system = '' %}{% endif %}{% endfor %}"
)

_PLAIN = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content + '\\n\\n' }}"
    "{% elif m.role == 'assistant' %}{{ 'Assistant: ' + m.content + '\\n' }}"
    "{% else %}{{ 'User: ' + m.content + '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


@dataclass(frozen=True)
class Builtin:
    """A template of ours.

    Args:
        name: for messages and ``ggfw show``.
        source: Jinja.
        needs: tokens a vocabulary must have for it.
        stops: strings that end an answer, where no token does.
    """

    name: str
    source: str
    needs: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()


#: In the order in which they are tried.
BUILTINS = (
    Builtin("llama3", _LLAMA3, ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    Builtin("chatml", _CHATML, ("<|im_start|>", "<|im_end|>")),
    Builtin("gemma", _GEMMA, ("<start_of_turn>", "<end_of_turn>")),
    Builtin("mistral", _MISTRAL, ("[INST]", "[/INST]")),
    Builtin("plain", _PLAIN, (), ("\nUser:",)),
)


def choose(has_token: Callable[[str], bool]) -> Builtin:
    """The first one whose tokens the vocabulary has; the plain one fits every vocabulary."""
    return next(b for b in BUILTINS if all(map(has_token, b.needs)))
