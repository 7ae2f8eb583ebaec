# The environment on a GPU host. server/Dockerfile has the same bytes: OpenEnv's build reads that one, its push this one.
#
#   docker build -t kernel_env:latest -f server/Dockerfile .
#   docker run --gpus all -p 8000:8000 -e KERNEL_ENV_GPUS=0 kernel_env:latest
#
# The CUDA toolkit is that of torch's wheel (13.0): nvcc and the headers serve load_inline and Triton.
FROM nvidia/cuda:13.0.2-devel-ubuntu24.04

RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates g++ git ninja-build python3.12 python3.12-dev python3.12-venv \
    && rm -rf /var/lib/apt/lists/*

ENV PYTHON=/usr/bin/python3.12 \
    VENV=/opt/venv \
    PATH=/opt/venv/bin:$PATH \
    CUDA_HOME=/usr/local/cuda \
    PYTHONUNBUFFERED=1 \
    UV_NO_CACHE=1 \
    UV_LINK_MODE=copy

WORKDIR /app

# From what changes least to what changes most; torch is a layer of its own because it is the large one. Called through
# bash because an upload to a Space loses the executable bit.
COPY requirements.lock ./
COPY scripts ./scripts
RUN bash scripts/image_steps.sh venv torch
RUN bash scripts/image_steps.sh deps
RUN bash scripts/image_steps.sh kernelbench
# By name: an upload to a Space can lose .dockerignore, and what it leaves out holds solutions, which a submission could
# read in the image.
COPY pyproject.toml README.md LICENSE openenv.yaml ./
COPY kernel_env ./kernel_env
COPY server ./server
RUN bash scripts/image_steps.sh app check

# What server/app.py sets itself, for a bare `uvicorn server.app:app`: a dropped ping must not end a session, and one
# message must not cost all sessions seconds.
ENV UVICORN_WS_PING_TIMEOUT=300 \
    UVICORN_WS_MAX_SIZE=4194304

# There is no USER line. The container starts as root so that its spawner can switch every submission to a uid of its
# own; the server and the judge drop to another one. Started as another user, the sandbox is weaker and says so.

EXPOSE 8000

HEALTHCHECK --interval=30s --timeout=10s --start-period=180s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=8)"]

CMD ["server", "--host", "0.0.0.0", "--port", "8000"]
