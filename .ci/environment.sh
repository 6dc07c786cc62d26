#!/bin/sh
# Make or refresh .venv: `sh .ci/environment.sh run` (run-time dependencies) or `... test` (and what tests need).
# Says everything on stderr, so that the output of `make run` is the model's alone. Does nothing, and needs no
# network, while neither the declaration of the package nor the Python has changed; C sources are compiled when they
# differ. PYTHON names the interpreter (python3), CC the compiler (gcc).
set -eu
exec >&2
cd "$(dirname "$0")/.."
stage=${1:-run}
python=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
unset PYTHONHOME || true

missing=
need() { case " $missing " in *" $1 "*) ;; *) missing="${missing:+$missing }$1" ;; esac; }

can_make_environment() {
    "$python" -c 'import venv, ensurepip' 2>/dev/null || command -v virtualenv >/dev/null 2>&1 ||
        "$python" -m pip --version >/dev/null 2>&1
}

check() {
    cc=${CC:-}
    if [ -z "$cc" ]; then
        for cc in gcc cc clang none; do command -v "$cc" >/dev/null 2>&1 && break; done
    fi
    if ! command -v "${cc%% *}" >/dev/null 2>&1; then
        need build-essential
    elif ! printf '#include <stdio.h>\n#include <math.h>\n' | $cc -x c -fsyntax-only - 2>/dev/null; then
        need libc6-dev
    fi
    if ! command -v "$python" >/dev/null 2>&1; then
        need python3-venv # brings python3 along
    elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "ggfw needs Python 3.10 or later and '$python' is older; name another one with PYTHON=python3.11"
        exit 1
    elif [ ! -x .venv/bin/python ] && ! can_make_environment; then
        need python3-venv
    fi
    if [ -n "$missing" ]; then
        echo "ggfw cannot be built here yet: install what is missing with 'apt install $missing' (Debian's names)."
        exit 1
    fi
    free=$(df -Pk . | awk 'NR == 2 { print int($4 / 1024) }')
    if [ "${free:-9999}" -lt 700 ]; then
        echo "ggfw needs about 700 MB of disk for .venv and the compiled kernels, and only $free MB are free here."
        exit 1
    fi
}

make_environment() {
    if .venv/bin/python -m pip --version >/dev/null 2>&1; then return; fi
    rm -rf .venv
    echo "making .venv"
    if "$python" -c 'import venv, ensurepip' 2>/dev/null && "$python" -m venv .venv; then return; fi
    rm -rf .venv
    # Debian without python3-venv: virtualenv does the same, and pip can put it into a folder of ours.
    if command -v virtualenv >/dev/null 2>&1; then
        virtualenv -q -p "$python" .venv
    else
        "$python" -m pip install -q --upgrade --target .cache/virtualenv virtualenv
        PYTHONPATH=.cache/virtualenv "$python" -m virtualenv -q -p "$python" .venv
    fi
}

# The folder belongs to it (an environment does not survive being moved), and so does the interpreter.
declared=$(cat pyproject.toml setup.py | cksum)
wanted="$(pwd) $("$python" -V 2>&1 || true) $declared"

case $stage in
    check) check; exit 0 ;;
    run) extras= ;;
    test) extras='[test]' ;;
    *) echo "usage: environment.sh check|run|test"; exit 2 ;;
esac
if [ "$(cat ".venv/.ggfw-$stage" 2>/dev/null)" != "$wanted" ]; then
    check
    make_environment
    rm -f ".venv/.ggfw-$stage"
    echo "compiling kernels_c"
    .venv/bin/python -m pip install -q 'cffi>=1.17'
    .venv/bin/python kernels_c/build.py
    echo "installing the dependencies (about a minute)"
    # setuptools warns that editable packages may be found twice; not with folders named unlike the package.
    PYTHONWARNINGS=ignore .venv/bin/python -m pip install -q --editable ".$extras"
    echo "$wanted" >".venv/.ggfw-$stage"
else
    .venv/bin/python kernels_c/build.py -q
fi
