"""README.md, the tutorial and other pages: all commands parse (fast), and those that a newcomer types run (slow)."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ggfw.cli.main import cli as root

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("contrib/*/README.md")),
]
PAGES += [ROOT / "bench" / "README.md", ROOT / "examples" / "deploy" / "README.md"]
FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.M | re.S)
PYTHONS = {"python3", "python"}


def blocks(page: Path, *languages: str) -> list[tuple[str, str | None, str]]:
    """(language, title, text) of the fenced blocks of a page."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [(lang, title or None, text) for lang, title, text in found if lang in languages or not languages]


def lines(text: str) -> list[str]:
    """Commands of a shell block, continued lines joined, comments gone."""
    joined = text.replace("\\\n", " ")
    return [line for raw in joined.splitlines() if (line := raw.strip()) and not line.startswith("#")]


def commands(page: Path) -> list[str]:
    """Every ``ggfw ...`` of a page: in shell blocks, indented blocks and code spans."""
    text = page.read_text(encoding="utf-8")
    shell = [line for _, _, block in blocks(page, "sh", "bash", "") for line in lines(block)]
    shell += [
        line.strip() for line in re.findall(r"^    +((?:\S+ )?ggfw .*)$", re.sub(FENCE, "", text), re.M)
    ]
    found = []
    for line in shell:
        for part in re.split(r"\$\(|\)|[|;&]+ ", line.partition("   #")[0].partition("     #")[0]):
            part = re.sub(r"^(?:sudo |exec |if |then |until |[A-Z_]+=\S+ )+", "", part.strip())
            if part.startswith("ggfw "):
                found.append(part.partition(" > ")[0].partition(" #")[0].rstrip("& ").strip())
    return found


def parse(command: str) -> None:
    """Let click read a command, without running it.

    Raises:
        click.UsageError: a verb or option that does not exist, a value of the wrong kind, an argument missing.
    """
    words = shlex.split(command)[1:]
    if words and words[0] in ("--help", "--version"):
        return
    if words and words[0] == "--config":
        words = words[2:]
    node: click.Command = root
    context = click.Context(root, info_name="ggfw", obj={})
    name = "ggfw"
    while isinstance(node, click.Group):
        assert words, f"{command}: a verb is missing"
        name, words = words[0], words[1:]
        child = node.get_command(context, name)
        if child is None:
            raise click.UsageError(f"there is no verb {name}")
        node = child
        if "--help" in words:
            return
    click.Command.make_context(node, name, [w for w in words if w != "…"], parent=context)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Variables and files of the user must not help a command to parse."""
    for name in [n for n in os.environ if n.startswith("GGFW_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_parse(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # files that the page says to write are there
    for _, title, text in blocks(page):
        if title:
            (tmp_path / title).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / title).write_text(text, encoding="utf-8")
    for command in commands(page):
        try:
            parse(command)
        except (click.ClickException, ValueError) as exc:
            raise AssertionError(f"{page.name}: {command}: {exc}") from exc


def test_commands_are_found() -> None:
    found = commands(ROOT / "docs" / "tutorial.md")
    assert {words.split()[1] for words in found} >= {
        "run",
        "chat",
        "serve",
        "show",
        "list",
        "plugins",
        "verify",
        "ps",
    }
    assert any("my-arch" in command for command in found)
    assert {words.split()[1] for words in commands(ROOT / "README.md")} >= {"run", "chat", "serve", "plugins"}
    assert any(commands(page) for page in PAGES if "contrib" in page.parts)


@pytest.mark.parametrize(
    "bad", ["ggfw rnu x", "ggfw run x --tempp 1", "ggfw run x --temp hot", "ggfw show", "ggfw"]
)
def test_wrong_commands_do_not(bad: str) -> None:
    with pytest.raises((click.UsageError, AssertionError)):
        parse(bad)


def test_targets_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = [line.partition(":")[0] for line in makefile.splitlines() if re.match(r"[a-z-]+[^=]*:", line)]
    targets = {name for rule in rules for name in rule.split()}
    for page in PAGES:
        for _, _, block in blocks(page, "sh", "bash", ""):
            for line in lines(block):
                if line.startswith("make ") and "=" not in line.split()[1]:
                    assert line.split()[1] in targets, f"{page.name}: {line}"


def test_python_blocks_compile() -> None:
    for page in PAGES:
        for _, title, block in blocks(page, "python"):
            compile(block, title or page.name, "exec")


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = re.sub(FENCE, "", page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target) or target.startswith("<"):
                continue
            there = (page.parent / path) if path else page
            made = path in ("reference/cli.md", "changelog.md")  # by .ci/reference.py
            assert made or there.exists(), f"{page.relative_to(ROOT)}: {target}"
            if made:
                continue
            if anchor and there.suffix == ".md":
                heads = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.M)
                slugs = {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in heads}
                assert anchor in slugs, f"{page.relative_to(ROOT)}: {target}"


def test_the_library_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiny_models import write_llama

    write_llama(tmp_path / "model.gguf", n_ctx=4096)
    monkeypatch.chdir(tmp_path)
    for _, _, block in blocks(ROOT / "docs" / "library.md", "python"):
        exec(compile(block, "library.md", "exec"), {})


def test_every_architecture_is_on_the_page() -> None:
    """With its names in `general.architecture`; and no other is."""
    from ggfw.registry import Registry

    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    told = {
        name
        for cell in re.findall(r"^\| [^|]*\(([^|]*)\) \|", page, re.M)
        for name in re.findall(r"`([\w-]+)`", cell)
    }
    registry = Registry.load(environ={"GGFW_PLUGINS": ""})
    known = {name for spec in registry.architectures.values() for name in spec.gguf_names}
    assert known == told


def test_every_public_name_is_in_the_reference() -> None:
    import ggfw

    text = (ROOT / "docs" / "reference" / "library.md").read_text(encoding="utf-8")
    whole = re.findall(r"^::: ggfw\.([\w.]+)$", text, re.M)
    for name in ggfw.__all__:
        module = ggfw._MODULE_OF.get(name)
        assert module is None or module in whole or f"{module}.{name}" in whole, name


def test_every_page_is_in_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        assert f" {page.relative_to(ROOT / 'docs')}\n" in nav, page.name
    index = (ROOT / "docs" / "decisions" / "index.md").read_text(encoding="utf-8")
    decisions = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    assert [page.name[:4] for page in decisions] == [f"{n:04d}" for n in range(1, len(decisions) + 1)]
    assert all(f"({page.name})" in index for page in decisions)


def test_pictures_and_tables_are_up_to_date() -> None:
    said = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "pictures.py"), "--check"], capture_output=True, text=True
    )
    assert said.returncode == 0, said.stdout + said.stderr


# -- what a newcomer types -------------------------------------------------------------------------------------------


def have_network() -> bool:
    """Whether pip reaches an index, with the user's own settings."""
    asked = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--dry-run",
        "--no-deps",
        "--ignore-installed",
        "openai",
    ]
    return subprocess.run(asked, capture_output=True).returncode == 0


def free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def shell(script: str, folder: Path, home: Path, *, timeout: int = 3600) -> str:
    """Run a script that stops at its first failing command; its output, both streams."""
    home.mkdir(exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GGFW", "VIRTUAL_ENV", "PYTHON", "XDG"))}
    kept["PATH"] = os.pathsep.join(
        part for part in os.environ["PATH"].split(os.pathsep) if Path(sys.prefix) not in Path(part).parents
    )
    said = subprocess.run(
        ["bash", "-c", f"set -euo pipefail\nexport HOME={shlex.quote(str(home))}\n{script}"],
        cwd=folder, env={**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout,
    )  # fmt: skip
    assert said.returncode == 0, (
        f"exit code {said.returncode}; the end of what was said:\n{said.stdout[-6000:]}"
    )
    return said.stdout


@pytest.mark.slow
def test_the_tutorial_runs_from_top_to_bottom(tmp_path: Path) -> None:
    """In a clone, in a fresh virtual environment and home; files are written where the page shows them."""
    if not have_network():
        pytest.skip("the package index is out of reach")
    clone = tmp_path / "ggfw"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    port = free_port()
    script = ["trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    for language, title, text in blocks(ROOT / "docs" / "tutorial.md", "sh", "python", "json"):
        text = text.replace("8080", str(port))
        if language == "sh":
            script += [f"echo; echo '$ '{shlex.quote(line)} >&2\n{line}" for line in lines(text)]
        else:
            assert title, "a block that is no command has to say which file it is"
            script.append(f"cat > {title} <<'END OF FILE'\n{text}END OF FILE")
    script.insert(1, f"export GGFW_PORT={port}")
    said = shell("\n".join(script), clone, tmp_path / "home")
    assert (clone / "answer.txt").read_text(encoding="utf-8").strip()
    assert "<svg" in (clone / "architecture.html").read_text(encoding="utf-8")
    assert re.search(r'"?river"?', said) and "my-arch" in said and "Traceback" not in said
    assert re.search(r"architectures? .*my-arch|my-arch +0\.1", said)


@pytest.mark.slow
def test_the_readme_runs(tmp_path: Path) -> None:
    """All of README's commands but `apt` (the machine's own business) and `make test` (which is this very run)."""
    if not have_network():
        pytest.skip("the package index is out of reach")
    clone = tmp_path / "ggfw"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    port = free_port()
    script = ["trap 'kill $(jobs -p) 2>/dev/null || true' EXIT", f"export GGFW_PORT={port}"]
    script.append("python3 -m venv fresh && . fresh/bin/activate")
    model = "$(ls $HOME/.cache/ggfw/models/*.gguf | head -n 1)"
    left_out = []
    for _, _, text in blocks(ROOT / "README.md", "sh"):
        for line in lines(text):
            line = line.partition("   #")[0].strip().replace("path/to/model.gguf", model)
            if line.startswith("apt ") or line == "make test":
                left_out.append(line)
            elif " serve " in f"{line} ":
                up = f"for i in $(seq 300); do curl -sf http://127.0.0.1:{port}/ready && break; sleep 0.2; done"
                stop = "kill %%; wait %% 2>/dev/null || true"
                script.append(
                    f"{line} & \n{up}\ncurl -sf http://127.0.0.1:{port}/v1/models\npkill -P $! || true\n{stop}"
                )
            elif " chat " in f"{line} ":
                script.append(
                    f"printf 'Hello\\n/bye\\n' | {line}{' ARGS=--local' if line.startswith('make') else ''}"
                )
            else:
                script.append(line)
    shell("\n".join(script), clone, tmp_path / "home")
    assert len(left_out) == 2
    assert (clone / "architecture.html").exists() and (clone / "ggfw-arch-my-arch").is_dir()
