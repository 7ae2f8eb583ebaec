#!/usr/bin/env bash
# openenv-core, which is declared, and openenv, its successor, which installs into the same package: each in an
# environment of its own with this package. Every client plays against every server, and OpenEnv's own commands are run
# on a copy of the project. Needs python3 (3.11 or later), uv, git and a package index; no Docker, no torch.
set -euo pipefail
cd "$(dirname "$0")/.."

SUCCESSOR="openenv==0.10.0"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# environment NAME DISTRIBUTION: the package's dependencies, with DISTRIBUTION in the place of openenv-core
environment() {
    local python="$work/$1/bin/python"
    uv venv --quiet --python "$(command -v python3)" "$work/$1"
    python3 - "$2" > "$work/$1.txt" <<'PY'
import sys, tomllib
wanted = tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]
print(sys.argv[1], *(item for item in wanted if not item.startswith("openenv")), sep="\n")
PY
    uv pip install --quiet --python "$python" -r "$work/$1.txt"
    uv pip install --quiet --python "$python" --no-deps "$project"
    "$python" - "$2" <<'PY'
import importlib.metadata, sys
found = {f"{name}=={importlib.metadata.version(name)}" for name in ("openenv", "openenv-core") if
         importlib.metadata.packages_distributions().get("openenv", []).count(name)}
if found != {sys.argv[1]}:
    sys.exit(f"the environment has {found}, and should have {sys.argv[1]} alone")
PY
}

project="$work/kernel_env"
mkdir "$project"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --target-directory "$project"
touch "$project/uv.lock" # `openenv validate` asks whether it is there
declared="$(python3 -c 'import tomllib
print(*(item for item in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"] if "openenv" in item))')"
environment core "$declared"
environment successor "$SUCCESSOR"
python3 tests/pairings/run.py "$project" "openenv-core=$work/core/bin/python" "openenv=$work/successor/bin/python"
