"""kernel_env on Modal: the GPU tests, and the served environment behind Modal's proxy authentication.

    modal run modal_app.py::gpu_tests     run tests/gpu on one GPU
    modal deploy modal_app.py             serve the environment; prints its URL

Both use the Dockerfile's image. One container has one GPU and judges one submission at a time; Modal starts more
containers as sessions arrive, up to KERNEL_ENV_MODAL_MAX_CONTAINERS, and none runs while nobody is connected. Read at
deploy time: KERNEL_ENV_MODAL_GPU (default "H100!"; the mark keeps Modal from handing out another model, which would
change every time measured), KERNEL_ENV_MODAL_MAX_CONTAINERS (default 4) and, when set, the server's own
KERNEL_ENV_STEP_TIMEOUT_S, KERNEL_ENV_MAX_TURNS, KERNEL_ENV_MAX_SESSIONS and KERNEL_ENV_REWARD.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import modal

ROOT = Path(__file__).parent
GPU = os.environ.get("KERNEL_ENV_MODAL_GPU", "H100!")
MAX_CONTAINERS = int(os.environ.get("KERNEL_ENV_MODAL_MAX_CONTAINERS", "4"))

STEP_TIMEOUT_S = float(os.environ.get("KERNEL_ENV_STEP_TIMEOUT_S", "240"))
MAX_TURNS = int(os.environ.get("KERNEL_ENV_MAX_TURNS", "4"))
MAX_SESSIONS = int(os.environ.get("KERNEL_ENV_MAX_SESSIONS", "64"))
REWARD = os.environ.get("KERNEL_ENV_REWARD", "speedup")

# A WebSocket session is one input to Modal, and Modal ends an input that outlives `timeout`: the limit is on the whole
# session, the trainer's thinking between the turns included, so it must hold a full episode of the longest steps.
SESSION_TIMEOUT_S = 4 * 3600
THINKING_MARGIN_S = 1800
if SESSION_TIMEOUT_S < MAX_TURNS * STEP_TIMEOUT_S + THINKING_MARGIN_S:
    raise ValueError(
        f"Modal would end a session after {SESSION_TIMEOUT_S} s, but {MAX_TURNS} turns of {STEP_TIMEOUT_S:g} s and "
        f"{THINKING_MARGIN_S} s in between need more: lower KERNEL_ENV_MAX_TURNS or KERNEL_ENV_STEP_TIMEOUT_S"
    )

app = modal.App("kernel-env")

image = modal.Image.from_dockerfile(ROOT / "Dockerfile", context_dir=ROOT).env(
    {
        "KERNEL_ENV_GPUS": "0",
        "KERNEL_ENV_EVALUATOR": "gpu",
        "KERNEL_ENV_STEP_TIMEOUT_S": f"{STEP_TIMEOUT_S:g}",
        "KERNEL_ENV_MAX_TURNS": str(MAX_TURNS),
        "KERNEL_ENV_MAX_SESSIONS": str(MAX_SESSIONS),
        "KERNEL_ENV_REWARD": REWARD,
        # For this file's own second import, inside the container.
        "KERNEL_ENV_MODAL_GPU": GPU,
        "KERNEL_ENV_MODAL_MAX_CONTAINERS": str(MAX_CONTAINERS),
    }
)
# The image that serves has no tests and no example kernels, which a submission could read.
test_image = image.run_commands("bash /app/scripts/image_steps.sh dev")
for folder in ("tests", "examples", "benchmarks"):
    test_image = test_image.add_local_dir(ROOT / folder, f"/app/{folder}")


@app.function(image=test_image, gpu=GPU, cpu=8, memory=32768, timeout=3600)
def gpu_tests() -> None:
    """Runs the tests that need a GPU.

    Raises:
        subprocess.CalledProcessError: a test failed, or none was collected.
    """
    subprocess.run(["python", "-m", "pytest", "tests", "-m", "gpu", "-ra"], cwd="/app", check=True)


@app.function(
    image=image,
    gpu=GPU,
    cpu=8,
    memory=32768,
    timeout=SESSION_TIMEOUT_S,
    min_containers=0,
    max_containers=MAX_CONTAINERS,
    scaledown_window=300,
)
# Another container is started once sessions average 16 on one GPU; a container never takes more than the server does.
@modal.concurrent(max_inputs=MAX_SESSIONS, target_inputs=min(16, MAX_SESSIONS))
@modal.asgi_app(requires_proxy_auth=True)
def serve():
    """The environment as an ASGI app. Clients send Modal-Key and Modal-Secret."""
    from server.app import build_app
    from server.settings import get_settings

    return build_app(get_settings())
