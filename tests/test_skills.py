"""Skills: their files, and how a conversation loads them without anybody seeing it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_model import FakeModel
from served import TOOLS_CHATML, function

import ggfw
from ggfw.chat.rounds import MAX_ROUNDS, NO_MORE
from ggfw.descriptors import Skill
from ggfw.errors import InvalidRequest

ASK = [ggfw.user("Speak like a pirate")]


def load(name: str = "pirate") -> str:
    return f'<tool_call>\n{{"name": "load_skill", "arguments": {{"name": "{name}"}}}}\n</tool_call>'


def skill(name: str = "pirate", body: str = "SAY ARRR", tools: tuple[Any, ...] = ()) -> Skill:
    return Skill(name=name, description=f"How to be a {name}", load=lambda: body, tools=tools)


def model(**options: Any) -> ggfw.Model:
    return ggfw.Model(FakeModel(**{"template": TOOLS_CHATML, "n_ctx": 4096, "max_rows": 512, **options}))  # type: ignore[arg-type]


# -- files -----------------------------------------------------------------------------------------------------------


def test_files_are_skills_or_warnings(tmp_path: Path) -> None:
    files = {
        "my-skill/SKILL.md": "---\nname: my-skill\ndescription: Sort the notes: tags, links\n---\nBody\n",
        "folded/SKILL.md": "---\nname: folded\ndescription: >\n  two\n  lines\n---\nB\n",
        "crlf.md": "---\r\nname: crlf\r\ndescription: with returns\r\n---\r\nB\r\n",
        "bom.md": "\ufeff---\nname: bom\ndescription: with a mark\n---\nB\n",
        "open.md": "---\nname: open\ndescription: never closed\n",
        "silent.md": "---\nname: silent\n---\nB\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode())
    found = ggfw.load_skills(tmp_path, plugins=False)
    assert {s.name: s.description for s in found.values()} == {
        "my-skill": "Sort the notes: tags, links",
        "folded": "two lines",
        "crlf": "with returns",
        "bom": "with a mark",
    }
    assert len(found) + len(found.warnings) == len(files)
    assert all(any(name in w for w in found.warnings) for name in ("open.md", "silent.md"))
    assert found.answer('{"name": "my-skill"}')[0].strip() == "Body"


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("---\nname: s\ndescription: d\n---\nB\n")
    folder = tmp_path / "skills"
    folder.mkdir()
    (folder / "link.md").symlink_to(secret)
    found = ggfw.load_skills(folder, plugins=False)
    assert not found and "link.md" in found.warnings[0]
    with pytest.raises(InvalidRequest, match="is no folder"):
        ggfw.load_skills(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("ünï 😀", "ünï"),
        ("u\u0308ni", "üni"),
        ("日本語 の 俳句", "日本語-の-俳句"),
        ("हिन्दी", "हिन्दी"),
        ("Стих о дожде!", "Стих-о-дожде"),
        ("a b", "a-b"),
        ("😀", "folder"),
    ],
)
def test_names_keep_the_letters_of_all_scripts(tmp_path: Path, given: str, name: str) -> None:
    path = tmp_path / "folder" / "SKILL.md"
    path.parent.mkdir()
    path.write_text(f"---\nname: {given}\ndescription: d\n---\nBody\n", encoding="utf-8")
    found = ggfw.load_skills(tmp_path, plugins=False)
    assert list(found) == [name] and not found.warnings
    assert found.answer(json.dumps({"name": name}))[0].strip() == "Body"
    with model(scripts={"Body": "Arrr!", "pirate": load(name)}) as m:
        assert m.chat(ASK, skills=found).text == "Arrr!"


def test_skills_that_lie_too_deep_are_named(tmp_path: Path) -> None:
    text = "---\nname: x\ndescription: d\n---\nB\n"
    places = [
        "nested/deep/SKILL.md",
        "nested/SKILL.md",
        "a/b/c/skill.md",
        ".git/a/b/SKILL.md",
        "nested/deep/notes.md",
    ]
    for place in places:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    found = ggfw.load_skills(tmp_path, plugins=False)
    assert list(found) == ["x"]
    assert len(found.warnings) == 2
    assert "a/b/c/skill.md" in found.warnings[0] and str(tmp_path / "nested") in found.warnings[1]
    assert list(ggfw.load_skills(tmp_path / "nested", plugins=False)) == ["x"]


# -- conversations ---------------------------------------------------------------------------------------------------


def test_a_skill_is_loaded_inside(tmp_path: Path) -> None:
    with model(scripts={"SAY ARRR": "Arrr!", "pirate": load()}) as m:
        result = m.chat(ASK, skills=[skill()])
        assert (result.text, result.tool_calls, result.finish_reason) == ("Arrr!", (), "stop")
        plain = m.chat(ASK)
        assert "load_skill" in str(plain.tool_calls) or plain.text  # without skills nobody answers the call
        assert result.usage.completion_tokens == len(load()) + len("Arrr!") + 2
        assert result.usage.prompt_tokens > 2 * plain.usage.prompt_tokens


def test_streams_show_no_internal_call() -> None:
    with model(scripts={"SAY ARRR": "Arrr!", "pirate": "Wait. " + load()}) as m:
        deltas = list(m.submit_chat(ASK, skills=[skill()]))
        assert all(isinstance(d, ggfw.TextDelta) for d in deltas)
        streamed = "".join(d.text for d in deltas)  # type: ignore[union-attr]
        assert streamed == m.chat(ASK, skills=[skill()]).text == "Wait.\n\nArrr!"

        async def read() -> str:
            return "".join([d.text async for d in m.submit_chat(ASK, skills=[skill()])])

        assert asyncio.run(read()) == streamed


def test_text_is_streamed_until_a_call_begins() -> None:
    with model(scripts={"SAY ARRR": "x", "pirate": "One two three. " + load()}) as m:
        m.loaded.executor.delay = 0.002  # type: ignore[attr-defined]
        handle = m.submit_chat(ASK, skills=[skill()])
        first = next(iter(handle))
        assert isinstance(first, ggfw.TextDelta) and first.text and "One two three.".startswith(first.text)
        assert not handle.done
        handle.cancel()


def test_mixed_turns_go_to_the_caller() -> None:
    both = load() + '\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    with model(scripts={"pirate": both}) as m:
        result = m.chat(ASK, skills=[skill()], tools=[function("f")])
        assert [c.name for c in result.tool_calls] == ["load_skill", "f"]
        assert result.finish_reason == "tool_calls"


def test_choices_that_leave_no_room_for_it() -> None:
    with model(scripts={"pirate": load()}) as m:
        assert m.chat(ASK, skills=[skill()], tool_choice="none").text == load()
        own = {"type": "function", "function": {"name": "load_skill", "parameters": {"type": "object"}}}
        called = m.chat(ASK, skills=[skill()], tools=[own])
        assert [c.name for c in called.tool_calls] == ["load_skill"]  # the caller's own tool


def test_rounds_are_limited_and_mistakes_are_told() -> None:
    with model(script=load("nobody"), n_ctx=8192) as m:
        seen: list[str] = []
        make = m.chat_request

        def noting(messages: Any, **options: Any) -> Any:
            seen.append(str(messages[-1]["content"]))
            return make(messages, **options)

        from ggfw.asking import submit_chat

        result = submit_chat(m, ASK, skills=[skill()], make=noting).result()
        assert result.tool_calls == () and result.finish_reason == "stop"
        assert len(seen) == 1 + MAX_ROUNDS
        assert "there is no skill 'nobody'; the skills are: pirate" in seen[1]
        assert seen[-1].endswith(NO_MORE)


def test_tools_of_a_skill_come_along() -> None:
    scripts = {
        "SAY ARRR": '<tool_call>\n{"name": "sail", "arguments": {}}\n</tool_call>',
        "pirate": load(),
    }
    with model(scripts=scripts) as m:
        result = m.chat(ASK, skills=[skill(tools=(function("sail"),))])
        assert [c.name for c in result.tool_calls] == ["sail"]


def test_what_nobody_offers_is_told_to_the_model_beside_tools_of_a_skill() -> None:
    """The caller has sent no tools; those of the skill do not make it one that may get any call."""
    stray = '<tool_call>\n{"name": "fly", "arguments": {}}\n</tool_call>'
    scripts = {
        "no tool 'fly'; only load_skill, sail can be called": "Aye.",
        "SAY ARRR": stray,
        "pirate": load(),
    }
    with model(scripts=scripts) as m:
        pirate = skill(tools=(function("sail"),))
        result = m.chat(ASK, skills=[pirate])
        assert (result.text, result.tool_calls, result.finish_reason) == ("Aye.", (), "stop")
        assert all(isinstance(d, ggfw.TextDelta) for d in m.submit_chat(ASK, skills=[pirate]))


def test_max_tokens_counts_all_rounds() -> None:
    with model(scripts={"SAY ARRR": "A" * 50, "pirate": load()}) as m:
        result = m.chat(ASK, skills=[skill()], max_tokens=len(load()) + 11)
        assert result.finish_reason == "length" and result.usage.completion_tokens == len(load()) + 11


# -- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "skills" / "pirate").mkdir(parents=True)
    text = "---\nname: pirate\ndescription: How to be a pirate\n---\nSAY ARRR\n"
    (tmp_path / "skills" / "pirate" / "SKILL.md").write_text(text)
    (tmp_path / "skills" / "broken.md").write_text("nothing")
    return tmp_path / "skills"


def test_run_uses_skills(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ggfw.cli.main import cli

    gguf = tmp_path / "m.gguf"
    gguf.write_bytes((Path(__file__).parent / "data" / "models" / "llama.gguf").read_bytes())
    monkeypatch.setattr(
        "ggfw.cli.loading.load_model",
        lambda path, options, **more: model(scripts={"SAY ARRR": "Arrr!", "pirate": load()}),
    )
    said = CliRunner().invoke(cli, ["run", str(gguf), "Speak like a pirate", "--skills", str(folder)])
    assert said.exit_code == 0 and "Arrr!" in said.output and "load_skill" not in said.output
    assert "broken.md is not a skill" in said.output
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([function("load_skill")]))
    called = CliRunner().invoke(
        cli, ["run", str(gguf), "Speak like a pirate", "--tools", str(tools), "--json"]
    )
    assert json.loads(called.output)["tool_calls"][0]["name"] == "load_skill", called.output
    wrong = CliRunner().invoke(cli, ["run", str(gguf), "x", "--tools", str(tools), "--tool-choice", "nobody"])
    assert wrong.exit_code != 0 and "nobody" in str(wrong.exception)


@pytest.mark.slow
def test_a_real_model_with_a_forced_call(smollm2_path: Path) -> None:
    with ggfw.load(smollm2_path, ctx=2048) as m:
        choice = {"type": "function", "function": {"name": "load_skill"}}
        body = "Rivers of Europe: the Volga is the longest. Mention the Volga."
        result = m.chat(
            [ggfw.user("Which river is the longest?")],
            skills=[skill("rivers", body)],
            tool_choice=choice,
            temperature=0,
            max_tokens=80,
        )
        assert "Volga" in result.text and not result.tool_calls
        assert result.usage.prompt_tokens > 300 and result.usage.cached_tokens > 0


def test_odd_names_and_escapes_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path is shown on one line; half a character is left as it was written; one closed folder closes no other."""
    (tmp_path / "a\n\x1b[31m.md").write_text("nothing")
    (tmp_path / "b.md").write_text('---\nname: b\ndescription: "x\\ud800"\n---\nDo it.')
    (tmp_path / "closed").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "SKILL.md").write_text("---\ndescription: d\n---\nDo it.")
    listed = Path.iterdir

    def iterdir(folder: Path) -> Any:
        if folder.name == "closed":
            raise PermissionError(13, "Permission denied")
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    found = ggfw.load_skills(tmp_path, plugins=False)
    assert {name: s.description for name, s in found.items()} == {"b": "x\\ud800", "open": "d"}
    assert len(found.warnings) == 2 and all(w.isprintable() for w in found.warnings)
    assert "closed cannot be listed: Permission denied" in found.warnings[0]
