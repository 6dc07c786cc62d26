#!/bin/sh
# The tests with real client packages (the extra `clients` of pyproject.toml), in an environment of their own: their
# dependencies are many and none of ggfw's business. The servers they talk to run in .venv.
set -eu
cd "$(dirname "$0")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
python=${GGFW_SERVER_PYTHON:-$PWD/.venv/bin/python}
clients=$PWD/.venv-clients
packages=$("$python" - <<'END'
try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib
with open("pyproject.toml", "rb") as file:
    print("\n".join(tomllib.load(file)["project"]["optional-dependencies"]["clients"]))
END
)
wanted="$PWD $("$python" -V) $packages"
if [ "$(cat "$clients/.wanted" 2>/dev/null)" != "$wanted" ]; then
    echo "installing the client packages" >&2
    rm -rf "$clients"
    "$python" -m venv "$clients" 2>/dev/null || "$python" -m virtualenv -q "$clients" 2>/dev/null ||
        { "$python" -m pip install -q virtualenv && "$python" -m virtualenv -q "$clients"; }
    echo "$packages" >"$clients/wanted.txt"
    "$clients/bin/python" -m pip install -q -r "$clients/wanted.txt"
    echo "$wanted" >"$clients/.wanted"
fi
GGFW_CLIENT_TESTS=1 GGFW_SERVER_PYTHON=$python exec "$clients/bin/python" -m pytest -q -W ignore \
    -p no:cacheprovider -c tests/clients/pytest.ini --rootdir tests/clients tests/clients "$@"
