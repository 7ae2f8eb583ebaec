"""Times load_inline as torch does it against load_inline with the kit of server/worker/extension_kit.py. Needs nvcc and
a torch built for CUDA, but no GPU: the libraries are built and imported, not run.

    python benchmarks/extension_compile.py --out DIRECTORY

Makes a kit of its own below a temporary directory, compiles each source of SOURCES in a new process each way, prints a
table, and writes extension_compile.json. Takes about 4 minutes on 16 cores. Exits with 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from server.worker import extension_kit  # noqa: E402

DECLARATION = "torch::Tensor scaled_relu(torch::Tensor x);"
LIGHT = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void scaled_relu_kernel(const float* x, float* y, int64_t n) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] > 0.0f ? 2.0f * x[i] : 0.0f;
}

torch::Tensor scaled_relu(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda(), "x must be on the GPU");
  auto y = torch::empty_like(x);
  const int64_t n = x.numel();
  scaled_relu_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
  return y;
}
"""
_ALLOCATION = "auto y = torch::empty_like(x);"
TYPES = LIGHT.replace(_ALLOCATION, f"{_ALLOCATION}\n  std::cout << torch::indexing::Slice(0, 3);")
FULL = LIGHT.replace(
    _ALLOCATION, f"{_ALLOCATION}\n  torch::NoGradGuard no_gradients;\n  torch::autograd::Variable z = y;"
)
BROKEN = LIGHT.replace("auto y", "auto result")
HOST = r"""
torch::Tensor scaled_relu(torch::Tensor x) {
  auto y = torch::empty_like(x);
  const float* from = x.data_ptr<float>();
  float* to = y.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] > 0.0f ? 2.0f * from[i] : 0.0f;
  return y;
}
"""


@dataclass(frozen=True)
class Source:
    """`target`: how many times as fast the kit must be; None where the issue sets none."""

    name: str
    arguments: dict[str, Any]
    target: float | None = None


_FUNCTIONS = {"functions": ["scaled_relu"]}
SOURCES = (
    Source("light headers serve it", {"cpp_sources": DECLARATION, "cuda_sources": LIGHT, **_FUNCTIONS}, 8.0),
    Source("needs torch/types.h", {"cpp_sources": DECLARATION, "cuda_sources": TYPES, **_FUNCTIONS}, 2.0),
    Source("needs the full headers", {"cpp_sources": DECLARATION, "cuda_sources": FULL, **_FUNCTIONS}, 2.0),
    Source("broken", {"cpp_sources": DECLARATION, "cuda_sources": BROKEN, **_FUNCTIONS}),
    Source("binding only", {"cpp_sources": HOST, **_FUNCTIONS}),
)
_CHILD = r"""
import json, sys, time
from torch.utils.cpp_extension import load_inline
arguments, directory = json.loads(sys.argv[1]), sys.argv[2]
error, names = "", []
began = time.monotonic()
try:
    names = dir(load_inline("benchmark_extension", build_directory=directory, **arguments))
except RuntimeError as failure:
    error = str(failure)
print(json.dumps({"wall_s": time.monotonic() - began, "names": names, "error": error}))
"""


@dataclass
class Built:
    """What came of one load_inline: `symbols` are the library's strong ones, `errors` the compiler's lines."""

    wall_s: float
    names: list[str]
    symbols: list[str]
    errors: list[str]


def build(source: Source, variables: dict[str, str]) -> Built:
    """One load_inline in a new process and an empty directory. Raises RuntimeError: the process itself failed."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-c", _CHILD, json.dumps(source.arguments), directory]
        environment = {**os.environ, **variables, "MAX_JOBS": "2"}
        answer = subprocess.run(command, env=environment, capture_output=True, text=True)
        if answer.returncode != 0:
            raise RuntimeError(answer.stderr[-2000:])
        found = json.loads(answer.stdout.splitlines()[-1])
        symbols: list[str] = []
        library = Path(directory, "benchmark_extension.so")
        if library.exists():
            listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
            symbols = sorted(line.split()[-1] for line in listed.stdout.splitlines() if line.split()[-2] in "TDB")
        errors = re.findall(r"\(\d+\): error: .*|:\d+:\d+: error: .*", found["error"])
        return Built(found["wall_s"], found["names"], symbols, errors)


def compare(source: Source, plain: Built, ours: Built) -> dict[str, Any]:
    """A row of the result. `same`: the same names and symbols, or the same errors."""
    same = (plain.names, plain.symbols, plain.errors) == (ours.names, ours.symbols, ours.errors)
    ratio = plain.wall_s / ours.wall_s
    return {
        "source": source.name,
        "torch_s": round(plain.wall_s, 2),
        "kit_s": round(ours.wall_s, 2),
        "ratio": round(ratio, 2),
        "target": source.target,
        "same": same and bool(plain.symbols or plain.errors),
        "ok": same and (source.target is None or ratio >= source.target),
    } | ({} if same else {"torch": asdict(plain), "kit": asdict(ours)})


def make_kit(cache: Path) -> tuple[extension_kit.Kit, dict[str, Any]]:
    """A kit, and what it took."""
    import torch
    from torch.utils import cpp_extension

    if cpp_extension.CUDA_HOME is None:
        sys.exit("needs nvcc and a torch that is built for CUDA")
    capability = "{}.{}".format(*torch.cuda.get_device_capability()) if torch.cuda.is_available() else "9.0"
    os.environ["TORCH_CUDA_ARCH_LIST"] = capability
    began = time.monotonic()
    kit = extension_kit.Kit(cache, capability)
    ready_s = None
    while kit.maker.poll() is None:
        if ready_s is None and extension_kit.compilers(kit.directory):
            ready_s = round(time.monotonic() - began, 1)
        time.sleep(0.1)
    sizes = [path.stat().st_size for path in Path(kit.directory).rglob("*") if path.is_file()]
    complete_s = round(time.monotonic() - began, 1)
    return kit, {"ready_s": ready_s, "complete_s": complete_s, "exit": kit.maker.returncode, "bytes": sum(sizes)}


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory for extension_compile.json")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)  # or a root's kit would be put where every user may read
        kit, made = make_kit(Path(name))
        try:
            print(f"kit: {made}", flush=True)
            variables = extension_kit.compilers(kit.directory)
            ours = [build(source, variables) for source in SOURCES]
            # Each takes two cores for a third of its time.
            at_once = max(1, (os.cpu_count() or 1) // 3)
            with ThreadPoolExecutor(at_once) as threads:
                plain = list(threads.map(lambda source: build(source, {}), SOURCES))
        finally:
            kit.close()
    rows = [compare(*row) for row in zip(SOURCES, plain, ours, strict=True)]
    print(f"{'source':24}{'torch s':>9}{'kit s':>9}{'ratio':>8}{'target':>8}  same")
    for row in rows:
        target = row["target"] or ""
        print(f"{row['source']:24}{row['torch_s']:9}{row['kit_s']:9}{row['ratio']:8}{target:>8}  {row['same']}")
    import torch

    machine = {"cores": os.cpu_count(), "torch": torch.__version__, "python": platform.python_version()}
    result = {"machine": machine, "commit": os.environ.get("COMMIT"), "kit": made, "rows": rows}
    out.mkdir(parents=True, exist_ok=True)
    (out / "extension_compile.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
