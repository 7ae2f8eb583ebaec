#!/usr/bin/env bash
# Refreshes requirements.lock and scripts/torch.lock: names, versions and hashes, no addresses. Needs uv.
#
# requirements.lock  what the image installs except torch: the package's dependencies, the build backend, and the
#                    gpu extra's small parts
# scripts/torch.lock torch and Triton for CUDA 13.0 with all that they need, at the same versions where the two overlap
#
# --upgrade moves every pin to the newest release; without it the pins stay and only what is missing is added.
set -euo pipefail
cd "$(dirname "$0")/.."

TORCH="torch==2.11.0"
TRITON="triton==3.6.0"

torch_pins="$(mktemp)"
trap 'rm -f "$torch_pins"' EXIT

compile() {
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url \
        --no-emit-find-links --custom-compile-command scripts/lock.sh "$@" > /dev/null
}

printf '%s\n' "$TORCH" "$TRITON" > "$torch_pins"
printf '%s\n' einops hatchling ninja nvidia-ml-py | compile pyproject.toml - -o requirements.lock "$@"
compile "$torch_pins" --constraint requirements.lock -o scripts/torch.lock "$@"
