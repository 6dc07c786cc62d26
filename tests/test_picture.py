"""Pictures: an architecture's outline is right, and its drawing is well-formed, complete and free of overlaps."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from cli_support import Cli
from hypothesis import given
from hypothesis import strategies as st

from ggfw.charts import Bar, Group, bars
from ggfw.gguf import GGUF, type_name
from ggfw.graph.architecture import RunConfig
from ggfw.graph.drawing import _GAP, _HEIGHT, _Panel, draw, page
from ggfw.graph.outline import Outline, _runs, outline
from ggfw.model import Described
from ggfw.registry import default_registry
from ggfw.svg import Svg

pytest_plugins = ["cli_support"]

DATA = Path(__file__).parent / "data" / "models"
NAMES = ("llama", "gemma3", "qwen3moe", "nemotron_h", "gemma4-e2b", "bert")
SVG = "{http://www.w3.org/2000/svg}"


def outlined(name: str) -> Outline:
    with GGUF.open(DATA / f"{name}.gguf") as gguf:
        return outline(Described(gguf, RunConfig(64), default_registry()).graph)


@pytest.mark.parametrize("name", NAMES)
def test_every_layer_and_every_operation_is_there_once(name: str) -> None:
    with GGUF.open(DATA / f"{name}.gguf") as gguf:
        graph = Described(gguf, RunConfig(64), default_registry()).graph
        found = outline(graph)
        n_layer = int(gguf.arch_get("block_count"))
    assert [layer for layer, _ in enumerate(found.order)] == list(range(n_layer))
    assert sorted(layer for kind in found.kinds for layer in kind.layers) == list(range(n_layer))
    drawn = sum(len(kind.boxes) * len(kind.layers) for kind in found.kinds)
    drawn += sum(len(s.boxes) for s in (found.before, found.after) if s is not None)
    assert drawn == sum(node.op != "reshape" for node in graph.nodes)


def test_windowed_layers_are_a_kind_of_their_own() -> None:
    found = outlined("gemma3")
    windows = [
        {box.settings.get("window") for box in kind.boxes if box.op == "attention"} for kind in found.kinds
    ]
    assert len(found.kinds) == 2 and sorted(w == {None} for w in windows) == [False, True]


def test_formats_are_told_by_layer() -> None:
    for kind in outlined("llama").kinds:
        for box in kind.boxes:
            for _, formats in box.weights.values():
                assert sorted(layer for where in formats.values() for layer in where) == kind.layers


@given(st.lists(st.sampled_from("AB"), max_size=24))
def test_runs_say_the_order(names: list[str]) -> None:
    def unfold(text: str) -> str:
        text = re.sub(r"(\d+) x \(([^)]*)\)", lambda m: ", ".join([m[2]] * int(m[1])), text)
        return re.sub(r"(\d+) x (\w)", lambda m: m[2] * int(m[1]), text).replace(", ", "")

    assert unfold(", ".join(_runs(names))) == "".join(names)


@pytest.mark.parametrize("name", NAMES)
def test_boxes_do_not_overlap_and_lines_lead_down(name: str) -> None:
    for section in outlined(name).sections:
        panel = _Panel(section, type_name)
        for rank in set(panel.rank):
            row = sorted((x, w) for x, w, r in zip(panel.x, panel.w, panel.rank, strict=True) if r == rank)
            for (a, wa), (b, wb) in zip(row, row[1:], strict=False):
                assert b - a >= (wa + wb) / 2 + _GAP - 1e-6
        for way in panel.edges:
            ranks = [panel.rank[i] for i in way]
            assert ranks == list(range(ranks[0], ranks[0] + len(ranks)))
        assert all(w / 2 <= x <= panel.width - w / 2 for x, w in zip(panel.x, panel.w, strict=True))
        assert panel.height > max(panel.rank) * _HEIGHT


def test_the_drawing_says_shapes_and_formats_under_the_pointer() -> None:
    root = ET.fromstring(draw(outlined("qwen3moe"), "a <b> & c", type_name, "facts"))
    hovers = [group.findtext(f"{SVG}title") or "" for group in root.iter(f"{SVG}g")]
    assert any("ffn_gate_exps [" in text and "]: F" in text for text in hovers)
    assert root.findtext(f"{SVG}title") == "a <b> & c"
    assert not re.search(r"https?://(?!www\.w3\.org)", draw(outlined("llama"), "x"))


def test_a_page_stands_alone(cli: Cli, tmp_path: Path) -> None:
    for kind in ("svg", "html"):
        target = tmp_path / f"out.{kind}"
        said = cli("show", DATA / "llama.gguf", "--graph", str(target))
        assert said.code == 0 and "out." in said.err and not said.out
        text = target.read_text(encoding="utf-8")
        assert "<svg" in text and not re.search(r'(src|href)="', text)
    assert page(outlined("llama"), "</title><script>x").count("<script>") == 1
    wrong = cli("show", DATA / "llama.gguf", "--graph", str(tmp_path / "out.png"))
    assert wrong.code == 2 and ".svg" in wrong.err
    assert "rms_norm" in cli("show", DATA / "llama.gguf", "--graph").out


def test_svg_escapes_what_it_is_given() -> None:
    svg = Svg("<>")
    svg.rect(0, 0, 10, 10, hover='"<&>')
    svg.text(0, 0, "<script>")
    assert ET.fromstring(str(svg)) is not None


def test_bench_draws_its_speeds(cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "speeds.svg"
    said = cli(
        "bench",
        DATA / "llama.gguf",
        "-p",
        "8",
        "-n",
        "4",
        "--repeat",
        "2",
        "--parallel",
        "1,2",
        "--plot",
        target,
    )
    assert said.code == 0 and "speeds.svg" in said.err
    root = ET.fromstring(target.read_text(encoding="utf-8"))
    hovers = [rect.findtext(f"{SVG}title") or "" for rect in root.iter(f"{SVG}rect")]
    assert sum("prompt: " in text for text in hovers) == sum("decode: " in text for text in hovers) == 2
    assert cli("bench", DATA / "llama.gguf", "--plot", tmp_path / "x.png").code == 2


def test_bars_are_as_long_as_their_values() -> None:
    groups = [
        Group("a", [Bar("x", 100, 90, 110), Bar("y", 50)], "tok/s"),
        Group("head"),
        Group("b", [Bar("x", 10)]),
    ]
    for shared, expected in ((True, [100, 50, 10]), (False, [100, 50, 110])):
        root = ET.fromstring(bars("t", groups, shared_scale=shared))
        widths = [
            float(r.get("width", 0)) for r in root.iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None
        ]
        assert [round(w / widths[0] * 100) for w in widths] == expected
