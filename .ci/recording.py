"""Record a terminal session, and draw recordings as animated SVG.

    python .ci/recording.py            records docs/images/first-minute.cast anew (asciicast v2, as asciinema writes it)

`.ci/pictures.py` draws `docs/images/first-minute.svg` from it. What is typed is typed evenly; what the programs write
comes when they wrote it, but that long silences are cut to a second.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CAST = ROOT / "docs" / "images" / "first-minute.cast"
WIDTH, HEIGHT = 88, 24
LONGEST_SILENCE = 1.0

#: What is typed.
SESSION = (
    'ggfw run "Name three rivers in Europe." --temp 0 --max-tokens 56',
    "ggfw show SmolLM2-135M-Instruct | head -n 9",
    "ggfw plugins new architecture my-arch",
    "ggfw plugins list --kind kernel_backends",
)


def record(session: tuple[str, ...]) -> list[tuple[float, str]]:
    """Type the commands of a session into a shell of its own; (seconds, text) of everything that appeared."""
    events: list[tuple[float, str]] = []
    now = 0.0
    folder = subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip()
    for command in session:
        events.append((now, "\x1b[32m$\x1b[0m "))
        now += 0.5
        for letter in command:
            events.append((now, letter))
            now += 0.035
        events.append((now + 0.3, "\r\n"))
        now += 0.3
        begin = last = time.monotonic()
        for text in _output(command, folder):
            at = time.monotonic()
            now += min(at - last, LONGEST_SILENCE)
            last = at
            events.append((now, text))
        print(f"{time.monotonic() - begin:6.2f} s  {command}", file=sys.stderr)
        now += 1.4
    return [*events, (now + 2.5, "")]


def _output(command: str, folder: str):  # type: ignore[no-untyped-def]
    """What a command writes to a terminal, as it comes."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(WIDTH), "LINES": str(HEIGHT)}
        os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        os.execvp("bash", ["bash", "-c", f"stty cols {WIDTH} rows {HEIGHT}; {command}"])
    pending = b""
    while True:
        select.select([fd], [], [])
        try:
            data = os.read(fd, 65536)
        except OSError:
            data = b""
        if not data:
            break
        pending += data
        text = pending.decode("utf-8", "ignore")
        pending = pending[len(text.encode()) :]
        yield text
    os.waitpid(pid, 0)


class Screen:
    """As much of a terminal as these programs use: lines, carriage returns, erasing, moving up."""

    def __init__(self) -> None:
        self.lines: list[list[str]] = [[]]
        self.x = self.y = 0

    def write(self, text: str) -> None:
        """Take text with control sequences."""
        for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\x1b\][^\x07]*\x07|[\s\S]", text):
            if part.startswith("\x1b["):
                self._control(part[-1], part[2:-1])
            elif part == "\r":
                self.x = 0
            elif part == "\n":
                self.y += 1
                self.x = 0
            elif part == "\b":
                self.x = max(0, self.x - 1)
            elif part >= " ":
                self._put(part)
            while len(self.lines) <= self.y:
                self.lines.append([])

    def _put(self, letter: str) -> None:
        if self.x >= WIDTH:
            self.x, self.y = 0, self.y + 1
            while len(self.lines) <= self.y:
                self.lines.append([])
        line = self.lines[self.y]
        line.extend(" " * (self.x + 1 - len(line)))
        line[self.x] = letter
        self.x += 1

    def _control(self, kind: str, number: str) -> None:
        n = int(number) if number.isdigit() else 1
        if kind == "A":
            self.y = max(0, self.y - n)
        elif kind == "K":
            line = self.lines[self.y]
            del line[0 if number == "2" else self.x :]
        elif kind == "G":
            self.x = n - 1

    def rows(self) -> list[str]:
        """The lowest lines that fit."""
        while len(self.lines) > 1 and not self.lines[-1] and self.y < len(self.lines) - 1:
            self.lines.pop()
        return ["".join(line).rstrip() for line in self.lines[-HEIGHT:]]


def draw(events: list[tuple[float, str]], title: str) -> str:
    """A recording as an animated SVG that begins again when it is over; without animation it shows the end."""
    screen, shown = Screen(), {}
    spans: list[tuple[int, str, float, float]] = []
    end = events[-1][0]
    last = -1.0
    for i, (at, text) in enumerate(events):
        screen.write(text)
        if i + 1 < len(events) and events[i + 1][0] - max(last, 0.0) < 0.08:
            continue  # a frame needs no more than twelve pictures a second
        last = at
        now = dict(enumerate(screen.rows()))
        for row in {*now, *shown}:
            before = shown.get(row)
            if before is None or before[0] != now.get(row, ""):
                if before and before[0]:
                    spans.append((row, before[0], before[1], at))
                shown[row] = (now.get(row, ""), at)
    spans += [(row, text, since, end) for row, (text, since) in shown.items() if text]
    width, height = WIDTH * 7.82 + 32, HEIGHT * 17 + 52
    parts = []
    for row, text, since, until in spans:
        final = until >= end
        prompt = text.startswith("$ ")
        kind = ' class="typed"' if prompt else ""
        if final:
            kind += ' visibility="visible"'
            change = _set("hidden", 0.0, since) if since else ""
        else:
            kind += ' visibility="hidden"'
            change = _set("visible", since, until)
        place = f'x="16" y="{52 + row * 17}"'
        parts.append(f'<text {place}{kind} xml:space="preserve">{escape(text)}{change}</text>')
    lights = "".join(
        f'<circle cx="{20 + 18 * i}" cy="18" r="5.5" fill="{c}"/>'
        for i, c in enumerate(("#ec6a5e", "#f4be4f", "#61c554"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="{escape(title)}">\n<title>{escape(title)}</title>\n'
        "<style>text { fill: #d8dee6; font: 13px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace;"
        " white-space: pre } .typed { fill: #8ce0a4 }</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#161b22">'
        f'<animate id="l" attributeName="opacity" from="1" to="1" begin="0s;l.end" dur="{end:.2f}s"/></rect>\n'
        + lights
        + "\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _set(visibility: str, begin: float, end: float) -> str:
    """A change of visibility, in seconds since the loop began."""
    times = f'begin="l.begin+{begin:.2f}s" end="l.begin+{end:.2f}s"'
    return f'<set attributeName="visibility" to="{visibility}" {times}/>'


def read(path: Path = CAST) -> list[tuple[float, str]]:
    """The events of a recording."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return [(event[0], event[2]) for event in map(json.loads, lines)]


def main() -> int:
    """Record the first minute."""
    events = record(SESSION)
    head = {"version": 2, "width": WIDTH, "height": HEIGHT, "title": "ggfw: the first minute"}
    rows = [
        json.dumps(head),
        *(json.dumps([round(at, 3), "o", text], ensure_ascii=False) for at, text in events),
    ]
    CAST.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
