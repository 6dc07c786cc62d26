"""Compile the C op into a plain shared library beside the module; needs a C compiler and ggfw's installed headers."""

import os
import subprocess

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py


class BuildWithOps(build_py):
    def run(self) -> None:
        from ggfw.kernels_c import get_include

        super().run()
        inplace = self.editable_mode
        folder = "ggfw_arch_parallel" if inplace else os.path.join(self.build_lib, "ggfw_arch_parallel")
        command = [os.environ.get("CC", "gcc"), "-O3", "-std=c11", "-fPIC", "-shared", "-fvisibility=hidden"]
        command += [
            "-I",
            get_include(),
            "ggfw_arch_parallel/ops.c",
            "-o",
            os.path.join(folder, "ops.so"),
            "-lm",
        ]
        subprocess.run(command, check=True)


class BinaryDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithOps}, distclass=BinaryDistribution)
