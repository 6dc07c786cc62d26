#!/bin/sh
# mypy over the packages. It cannot see through an editable install's finder, so it gets a throwaway folder of links
# in which folder X of the checkout is the package ggfw.X, as it is when installed.
set -eu
cd "$(dirname "$0")/.."
view=build/types/ggfw
rm -rf build/types
mkdir -p "$view"
for path in core/*; do ln -s "../../../$path" "$view/"; done
for folder in cli kernels_c plugins server; do ln -s "../../../$folder" "$view/"; done
MYPYPATH=build/types exec .venv/bin/python -m mypy -p ggfw
