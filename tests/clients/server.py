"""A server with a scripted stand-in for a model: ``python server.py PORT``. What it answers depends on the prompt."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_model import FakeModel
from served import TOOLS_CHATML
from tiny_models import write_llama

import ggfw
from ggfw.library import Model
from ggfw.server import create_app, serve
from ggfw.server.pool import Pool
from ggfw.server.store import Store

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


class Near(Store):
    """A store that fetches ``far-away`` from next door, in ten pieces."""

    def pull(self, name: str, progress: Any) -> Any:
        """Fetch a model."""
        if name.removesuffix(":latest") != "far-away":
            return super().pull(name, progress)
        path = self.folder / "far-away.gguf"
        for tenth in range(1, 11):
            time.sleep(0.12)
            progress("fetching", tenth * 1000, 10_000)
        progress("checking", 10_000, 10_000)
        return self.add_file(write_llama(path), name)


def main() -> None:
    fake = FakeModel(HELLO, scripts=SCRIPTS, template=TOOLS_CHATML, n_ctx=8192, max_rows=512)
    with Model(fake) as model, tempfile.TemporaryDirectory() as folder:  # type: ignore[arg-type]
        pool = Pool()
        pool.add_model(model, "stand-in")
        app = create_app(pool=pool, store=Near(Path(folder), pool, ggfw.load))
        serve(app, "127.0.0.1", int(sys.argv[1]))


if __name__ == "__main__":
    main()
