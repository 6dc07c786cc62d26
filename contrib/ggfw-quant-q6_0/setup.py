"""Compile the kernels into a plain shared library beside the module, with ggfw's installed headers."""

import os
import subprocess

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

PACKAGE = "ggfw_quant_q6_0"


class BuildWithKernels(build_py):
    def run(self) -> None:
        from ggfw.kernels_c import get_include

        super().run()
        folder = PACKAGE if self.editable_mode else os.path.join(self.build_lib, PACKAGE)
        flags = ["-O3", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-I", get_include()]
        target = os.path.join(folder, "kernels.so")
        subprocess.run(
            [os.environ.get("CC", "cc"), *flags, f"{PACKAGE}/kernels.c", "-o", target, "-lm"], check=True
        )


class BinaryDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithKernels}, distclass=BinaryDistribution)
