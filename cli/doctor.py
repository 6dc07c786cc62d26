"""``ggfw doctor``: what this machine and this installation are, for support and for surprises."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from ggfw.cli import terminal
from ggfw.cli.loading import models_dir_option
from ggfw.cli.settings import config_path, setting, verb

__all__ = ["doctor_verb"]

#: Instruction sets that kernels are written for.
FEATURES = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve",
)  # fmt: skip


@verb("doctor")
@setting("--json", "as_json", is_flag=True, help="Print JSON.")
@models_dir_option
@click.pass_context
def doctor_verb(ctx: click.Context, as_json: bool, models_dir: str | None) -> int:
    """Report on Python, processor, kernel backends, threads, memory, folders, compiler and plugins.

    Exits with 1 when no model can be run here.
    """
    report = _report(models_dir, (ctx.find_root().obj or {}).get("config"))
    if as_json:
        terminal.print_json(report)
    else:
        _print(report)
    for problem in report["problems"]:
        if not as_json:
            terminal.error(problem["problem"])
    return int(bool(report["problems"]))


def _print(report: dict[str, Any]) -> None:
    """The report as one table of facts, and one for each list that has rows."""
    width = terminal.columns()
    facts = {key: value for key, value in report.items() if not isinstance(value, list)}
    folders = [row["folder"] for row in report["model_folders"]]
    facts["model folders"] = "\n".join(folders) or "none"
    rows = [
        [key if n == 0 else "", line]
        for key, text in facts.items()
        for n, line in enumerate(text.split("\n"))
    ]
    terminal.print_table(["what", "here"], rows, width=width)
    for name in ("backends", "broken_plugins"):
        found = report[name]
        if found:
            print()
            cells = [[str(cell) for cell in row.values()] for row in found]
            terminal.print_table(
                ["backend" if name == "backends" else "plugin", *list(found[0])[1:]], cells, width=width
            )


def _report(models_dir: str | None, config: str | None) -> dict[str, Any]:
    from ggfw.cli.folders import cache_folder, model_folders, ollama_folders
    from ggfw.cli.progress import size
    from ggfw.registry import default_registry
    from ggfw.threads import choose_threads

    registry, threads = default_registry(), choose_threads()
    backends = [
        {
            "name": row.name,
            "state": row.state,
            "score": registry.score(row.name) or "",
            "reason": row.reason or row.summary,
        }
        for row in registry.rows("kernel_backends")
    ]
    broken = [
        {"plugin": row.plugin, "distribution": row.distribution, "reason": row.reason}
        for row in registry.broken()
    ]
    problems = []
    if not any(row["state"] == "ok" for row in backends):
        problems.append("no kernel backend can be used, so models run with --backend reference only, slowly")
    problems += [
        f"plugin {row['plugin']}: {row['reason']}" for row in broken if row["distribution"] == "ggfw"
    ]
    folders = [*model_folders(models_dir), *ollama_folders(models_dir)]
    file = config_path(config)
    return {
        "ggfw": metadata.version("ggfw"),
        "python": f"{platform.python_version()} ({platform.python_implementation()}, {sys.executable})",
        "system": platform.platform(),
        "processor": _processor(),
        "features": " ".join(_features()) or "unknown",
        "backends": backends,
        "threads": f"{threads.threads} ({threads.reason})",
        "memory": _memory(size),
        "model_folders": [{"folder": str(folder)} for folder in folders],
        "cache": f"{cache_folder()} ({size(shutil.disk_usage(_existing(cache_folder())).free)} free)",
        "config": f"{file} ({'there' if file.is_file() else 'not there'})",
        "compiler": next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), "none"),
        "pip": "yes" if find_spec("pip") else "none (python -m ensurepip installs it)",
        "huggingface_hub": _version("huggingface_hub") or "none (pip install 'ggfw[hub]')",
        "broken_plugins": broken,
        "problems": [{"problem": problem} for problem in problems],
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _cpuinfo() -> dict[str, str]:
    """The first processor's entry of /proc/cpuinfo; empty elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _processor() -> str:
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def _features() -> list[str]:
    info = _cpuinfo()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return [name for name in FEATURES if name in flags]


def _memory(size: Any) -> str:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
        return size(pages) if pages else "unknown"
    found = {
        key: 1024 * int(value.split()[0])
        for key, _, value in (line.partition(":") for line in lines)
        if value
    }
    return f"{size(found.get('MemAvailable', 0))} of {size(found.get('MemTotal', 0))} available"


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
