from ggfw_dialect_glm import ggfw_register_chat_dialects, make, match

from ggfw.chat.deltas import ToolCallDelta
from ggfw.chat.tools import Tools
from ggfw.registry import default_registry
from ggfw.testing import check_chat_dialect

TEMPLATE = "<tool_call>{name}<arg_key>{key}</arg_key><arg_value>{value}</arg_value></tool_call>"


def test_conforms() -> None:
    for dialect in ggfw_register_chat_dialects():
        check_chat_dialect(dialect)


def test_it_wins_where_its_tags_are_and_nowhere_else() -> None:
    assert default_registry().dialect_for({"tokenizer.chat_template": TEMPLATE}).name == "glm"
    assert match({"tokenizer.chat_template": '<tool_call>{"name"'}) == 0


def test_a_call_that_is_cut_off_stays_text() -> None:
    parser = make().parser("", Tools.of([{"name": "now"}]))
    deltas = [*parser.push("<tool_call>now\n<arg_key>a</arg_"), *parser.finish()]
    assert all(d.name in ("", "now") for d in deltas if isinstance(d, ToolCallDelta))
