"""GLM 4.5 to 4.7: ``<tool_call>NAME`` with ``<arg_key>`` and ``<arg_value>`` pairs, reasoning in ``<think>``."""

import json

from ggfw.descriptors import ChatDialect
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

KEY, END_KEY, VALUE, END_VALUE = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
OPEN, CLOSE = "<tool_call>", "</tool_call>"


def make():
    """The dialect; what it needs is imported when a model uses it."""
    from ggfw.chat.bodies import MAX_NAME, check_name
    from ggfw.chat.dialect import Dialect
    from ggfw.chat.format import CallForm, Format
    from ggfw.chat.reader import Broken
    from ggfw.chat.typed import is_text, kinds_of, property_of, typed

    class Pairs:
        """The inside of a call."""

        def parse(self, reader, sink, tools):
            """Read one call, up to its closing mark."""
            yield from reader.space()
            name = ""
            while (c := (yield from reader.peek())) and c not in "<\n":
                name += yield from reader.read()
                if len(name) > MAX_NAME:
                    raise Broken("name")
            name = check_name(name)
            tool = tools.get(name)
            parameters = tool.parameters if tool else {}
            sink.begin(name)
            seen = set()
            while True:
                space = yield from reader.space()
                if not (yield from reader.match(KEY)):
                    reader.unread(space)
                    break
                key, _ = yield from reader.until(END_KEY, limit=MAX_NAME)
                key = check_name(key)
                if key in seen:
                    raise Broken(key)
                seen.add(key)
                yield from reader.space()
                yield from reader.expect(VALUE)
                value, _ = yield from reader.until(END_VALUE)
                kinds = kinds_of(property_of(parameters, key), parameters)
                comma = "," if len(seen) > 1 else "{"
                sink.arguments(f"{comma}{json.dumps(key, ensure_ascii=False)}:{typed(value, kinds)}")
            sink.arguments("}" if seen else "{}")
            sink.end()

        def grammar(self, lark, tools):
            """One call of one of the tools; arguments in the order of the schema."""
            return lark.rule(" | ".join(self._call(lark, tool) for tool in tools.callable))

        def _call(self, lark, tool):
            properties = tool.parameters.get("properties") or {}
            required = tool.parameters.get("required") or ()
            parts = [lark.text(f"{tool.name}\n")]
            for key, schema in properties.items():
                if is_text(kinds_of(schema, tool.parameters)):
                    value = lark.text_value(tool, schema, END_VALUE)
                else:
                    value = f"{lark.value(tool, schema)} {lark.text(END_VALUE)}"
                pair = f"{lark.text(f'{KEY}{key}{END_KEY}' + chr(10) + VALUE)} {value} {lark.text(chr(10))}"
                parts.append(pair if key in required else f"({pair})?")
            return " ".join(parts)

    class Glm(Dialect):
        """Several calls are several blocks."""

        format = Format(calls=(CallForm(OPEN, Pairs(), (CLOSE,)),))

    return Glm()


def match(metadata):
    """By the tags in the template."""
    template = metadata.get("tokenizer.chat_template")
    return 60 if isinstance(template, str) and KEY in template and OPEN in template else 0


def sample():
    """Outputs, and what they say."""
    tools = [
        {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
        {"name": "now"},
    ]

    def call(name, *pairs, gap="\n"):
        inner = "".join(f"{KEY}{k}{END_KEY}{gap}{VALUE}{v}{END_VALUE}{gap}" for k, v in pairs)
        return f"{OPEN}{name}{gap}{inner}{CLOSE}"

    rome = ["weather", {"city": "Rome", "days": 3}]
    return [
        {"output": "Hello.", "text": "Hello."},
        {"output": call("weather", ("city", "Rome"), ("days", 3)), "calls": [rome], "tools": tools},
        {
            "output": call("weather", ("city", "Rome"), ("days", 3), gap=""),
            "calls": [rome],
            "tools": tools,
        },  # 4.7
        {
            "output": f"<think>Two.</think>\nLet me look.\n{call('weather', ('city', '5'))}\n{call('now')}",
            "reasoning": "Two.",
            "text": "Let me look.",
            "calls": [["weather", {"city": "5"}], ["now", {}]],
            "tools": tools,
        },
        {
            "output": call("weather", ("city", 'a "b"\n<c>')),
            "calls": [["weather", {"city": 'a "b"\n<c>'}]],
            "tools": tools,
        },
    ]


@hookimpl
def ggfw_register_chat_dialects():
    return [
        ChatDialect(
            name="glm",
            match=match,
            load=make,
            sample=sample,
            summary="<arg_key>/<arg_value> pairs: GLM 4.5 to 4.7",
        )
    ]
