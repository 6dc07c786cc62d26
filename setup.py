"""What TOML cannot say: the C code is compiled into plain shared libraries, so one wheel serves every Python."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def kernels() -> ModuleType:
    """Return ``kernels_c/build.py`` as a module; the package it belongs to is not importable yet."""
    spec = importlib.util.spec_from_file_location("ggfw_kernels_build", ROOT / "kernels_c" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


class BuildKernels(build_ext):
    """Compile into ``kernels_c/lib``; for a wheel, put the libraries into the build folder as well."""

    def run(self) -> None:
        build = kernels()
        try:
            self._made = build.build()
        except build.BuildError as exc:
            raise SystemExit(f"ggfw: {exc}") from exc
        if not self.inplace and not getattr(self, "editable_mode", False):
            folder = Path(self.build_lib) / "ggfw" / "kernels_c" / "lib"
            shutil.rmtree(folder, ignore_errors=True)  # an older build's library must not come along
            folder.mkdir(parents=True)
            for path in self._made:
                shutil.copy2(path, folder / path.name)

    def get_outputs(self) -> list[str]:
        made = getattr(self, "_made", [])
        return [str(Path(self.build_lib) / "ggfw" / "kernels_c" / "lib" / path.name) for path in made]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class PlatformWheel(bdist_wheel):
    """``py3-none-PLATFORM``: bound to a platform by the libraries, to no Python version by anything."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class NativeDistribution(Distribution):
    """Has compiled code although no extension module is declared."""

    def has_ext_modules(self) -> bool:
        return True


# Not in the root: from there, Python would find a second, older distribution called ggfw on its path.
METADATA = ROOT / "build" / "metadata"
METADATA.mkdir(parents=True, exist_ok=True)

setup(
    distclass=NativeDistribution,
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel},
    options={"egg_info": {"egg_base": str(METADATA.relative_to(ROOT))}},
)
