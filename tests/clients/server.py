"""A server with a scripted stand-in for a model: ``python server.py PORT``. What it answers depends on the prompt."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_model import FakeModel
from served import TOOLS_CHATML

from ggfw.library import Model
from ggfw.server import create_app, serve

HELLO = "Hello from the stand-in."
WEATHER = 'Let me look. <tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
CITIES = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
)

#: Part of the prompt -> answer; the first that is found counts.
SCRIPTS = {
    "22 degrees": "It has 22 degrees in Paris.",
    "two cities": CITIES,
    "weather": WEATHER,
    "think": "<think>\nSix by seven.\n</think>\n\n42",
    "person": '{"name": "Ada", "age": 36}',
    "count forever": "1 2 3 " * 400,
}


def main() -> None:
    fake = FakeModel(HELLO, scripts=SCRIPTS, template=TOOLS_CHATML, n_ctx=8192, max_rows=512)
    with Model(fake) as model:  # type: ignore[arg-type]
        serve(create_app(model, id="stand-in"), "127.0.0.1", int(sys.argv[1]))


if __name__ == "__main__":
    main()
