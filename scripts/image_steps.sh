#!/usr/bin/env bash
# What the image does after apt, in steps, so that CI can run the same steps without Docker.
#
#   image_steps.sh STEP...      in the order given
#
#   venv          make $VENV with $PYTHON
#   torch         install torch and Triton from scripts/torch.lock (several GB)
#   deps          install everything else from requirements.lock
#   kernelbench   clone KernelBench at the pinned commit into $KERNELBENCH
#   app           install this package, without touching what the locks installed
#   dev           add what the tests need
#   check         start the installed server in mock mode, ask /health and reset to a task
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
PYTHON="${PYTHON:-python3}"
VENV="${VENV:-/opt/venv}"
KERNELBENCH="${KERNELBENCH:-/opt/KernelBench}"
KERNELBENCH_COMMIT=423217d9fda91e0c2d67e4a43bf62f96f6d104f1
UV_VERSION=0.13.9

# Installs into $VENV with uv, which is fetched into a directory of its own where the machine has none.
install() {
    if ! command -v uv > /dev/null; then
        "$PYTHON" -m venv /tmp/uv-bootstrap
        /tmp/uv-bootstrap/bin/pip install --quiet --no-cache-dir "uv==$UV_VERSION"
        export PATH="/tmp/uv-bootstrap/bin:$PATH"
    fi
    uv pip install --python "$VENV/bin/python" "$@"
}

step_venv() {
    "$PYTHON" -m venv "$VENV"
}

step_torch() {
    install --require-hashes -r "$ROOT/scripts/torch.lock"
}

step_deps() {
    install --require-hashes -r "$ROOT/requirements.lock"
}

step_kernelbench() {
    git init --quiet "$KERNELBENCH"
    git -C "$KERNELBENCH" fetch --quiet --depth 1 https://github.com/ScalingIntelligence/KernelBench "$KERNELBENCH_COMMIT"
    git -C "$KERNELBENCH" checkout --quiet FETCH_HEAD
    test "$(git -C "$KERNELBENCH" rev-parse HEAD)" = "$KERNELBENCH_COMMIT"
    test -d "$KERNELBENCH/KernelBench/level1"
    rm -rf "$KERNELBENCH/.git"
}

# The build backend comes from requirements.lock, hence no isolation.
step_app() {
    install --no-deps --no-build-isolation "$ROOT"
}

step_dev() {
    install "${ROOT}[dev]"
}

# From another directory, so that the installed package is what starts, with the data files it came with.
step_check() {
    cd /
    "$VENV/bin/kernel-env" --help > /dev/null
    KERNEL_ENV_EVALUATOR=mock "$VENV/bin/python" - "$VENV/bin/server" <<'PY'
import importlib.resources, json, socket, subprocess, sys, time, urllib.request

assert (importlib.resources.files("kernel_env") / "openenv.yaml").is_file()

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
server = subprocess.Popen([sys.argv[1], "--host", "127.0.0.1", "--port", str(port)])
try:
    deadline = time.monotonic() + 120
    while True:
        if server.poll() is not None:
            sys.exit(f"the server ended with status {server.returncode} before it answered")
        if time.monotonic() > deadline:
            sys.exit("the server did not answer /health within 120 s")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
                body = json.load(reply)
            break
        except OSError:
            time.sleep(0.5)
    print("/health:", body)
    if body.get("status") != "healthy":
        sys.exit(1)
    request = urllib.request.Request(f"http://127.0.0.1:{port}/reset", b'{"seed": 0}', {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        observation = json.load(reply)["observation"]
    print("/reset:", observation["task_id"])
    if "class Model" not in observation["problem"]:
        sys.exit("the task handed out has no reference")
finally:
    server.terminate()
    server.wait(30)
PY
    cd "$ROOT"
}

for step in "$@"; do
    case "$step" in
        venv | torch | deps | kernelbench | app | dev | check) ;;
        *)
            echo "unknown step: $step" >&2
            exit 2
            ;;
    esac
    echo "== image step: $step"
    "step_$step"
done
