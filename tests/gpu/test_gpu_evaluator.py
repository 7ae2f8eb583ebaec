"""The gpu evaluator on a real device: every built-in task's solution, and what must not survive a submission."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import make_settings

from server.evaluator import EvalResult
from server.pool import PoolEvaluator
from server.scoring import score
from server.tasks import TaskSource
from server.worker.protocol import Evaluate

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TASKS = TaskSource.builtin()
RELU = "level1/19_ReLU"
SETTINGS = make_settings(evaluator="gpu")


def _cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not _cuda(), reason="needs a CUDA GPU")]


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolEvaluator]:
    evaluator = PoolEvaluator(SETTINGS)
    evaluator.start()
    yield evaluator
    evaluator.close()


def evaluate(pool: PoolEvaluator, task_id: str, code: str, **values: Any) -> EvalResult:
    request = Evaluate(uuid.uuid4().hex, task_id, TASKS.get(task_id).source, code, **values)
    return asyncio.run(pool.evaluate(request, 200.0))


def solution(task_id: str) -> str:
    return (EXAMPLES / f"{task_id}.py").read_text()


def paid(pool: PoolEvaluator, task_id: str = RELU) -> bool:
    result = evaluate(pool, task_id, solution(task_id))
    reward = score(result.verdict, SETTINGS, result.device, task_id).reward
    return result.verdict.outcome == "scored" and reward is not None and reward > 0


RELU_TEMPLATE = """\
import os, signal
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def relu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    {kernel}
    tl.store(out_ptr + at, tl.maximum(x, 0.0), mask=at < n)

class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        {forward}
        relu_kernel[(triton.cdiv(x.numel(), 4096),)](x, out, x.numel(), BLOCK=4096)
        {after}
        return out
"""


def relu(kernel: str = "pass", forward: str = "pass", after: str = "pass") -> str:
    return RELU_TEMPLATE.format(kernel=kernel, forward=forward, after=after)


@pytest.mark.parametrize("task_id", TASKS.task_ids)
def test_every_built_in_solution_is_paid(pool: PoolEvaluator, task_id: str) -> None:
    result = evaluate(pool, task_id, solution(task_id))
    verdict = result.verdict
    assert verdict.outcome == "scored", (verdict.outcome, verdict.feedback, verdict.infra_detail)
    outcome = score(verdict, SETTINGS, result.device, task_id)
    assert outcome.reward is not None and outcome.reward > 0, outcome.fields


BAD = {
    "illegal access": (relu(kernel="tl.store(out_ptr + at + (1 << 44), x)"), {"runtime_error", "crashed"}),
    "device assert": (relu(forward="out = torch.empty_like(x).fill_(float('nan')); return out"), {"nonfinite"}),
    "crash": (relu(forward="os.kill(os.getpid(), signal.SIGSEGV)"), {"crashed"}),
    "exit": (relu(forward="os._exit(0)"), {"exited"}),
    "too much device memory": (relu(forward="keep = torch.empty(1 << 38, device='cuda')"), {"out_of_memory"}),
    "read on the host": (relu(after="out[0, 0].item()"), {"format_violation"}),
    "copy to the host": (relu(after="out.cpu()"), {"format_violation"}),
    "arithmetic": (relu(after="out = out * 1.0"), {"format_violation"}),
    "half": (relu(after="out = out.half()"), {"wrong_dtype"}),
    "not a kernel": (relu(kernel="x = tl.undefined_function(x)"), {"compile_error"}),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_kernel_is_the_models_and_the_next_is_paid(pool: PoolEvaluator, name: str) -> None:
    code, outcomes = BAD[name]
    verdict = evaluate(pool, RELU, code).verdict
    assert verdict.outcome in outcomes, (verdict.outcome, verdict.feedback, verdict.infra_detail)
    assert verdict.feedback
    assert paid(pool)


def test_a_kernel_that_never_returns_is_ended_and_the_next_is_paid(pool: PoolEvaluator) -> None:
    code = relu(kernel="while tl.load(x_ptr, volatile=True) > -1e30:\n        x = x + 1.0")
    verdict = evaluate(pool, RELU, code, compile_timeout_s=5.0, run_timeout_s=5.0).verdict
    assert verdict.outcome == "timeout", (verdict.outcome, verdict.feedback)
    assert paid(pool)


def test_a_forged_event_time_is_replaced_by_the_judges_clock(pool: PoolEvaluator) -> None:
    honest = evaluate(pool, RELU, solution(RELU)).verdict
    code = "import torch\ntorch.cuda.Event.elapsed_time = lambda self, other: 1e-4\n" + solution(RELU)
    forged = evaluate(pool, RELU, code).verdict
    assert forged.timing_method == "wall" or forged.outcome != "scored", forged
    assert honest.t_new_ms is not None
    if forged.t_new_ms is not None:
        assert forged.t_new_ms > 0.5 * honest.t_new_ms


def test_the_candidate_is_not_root_and_has_its_gpu(pool: PoolEvaluator) -> None:
    code = relu(forward="raise RuntimeError(f'uid={os.getuid()} cuda={torch.cuda.is_available()}')")
    verdict = evaluate(pool, RELU, code).verdict
    assert "cuda=True" in verdict.feedback
    assert "uid=0 " not in verdict.feedback or (pool.device is not None and "same-uid" in pool.device.sandbox)


def test_memory_that_another_program_holds_is_not_the_submissions_fault(pool: PoolEvaluator) -> None:
    code = relu(forward="keep = torch.empty(free, dtype=torch.uint8, device='cuda')").replace("free", str(60 << 30))
    hog = "import torch; held = torch.empty(100 << 30, dtype=torch.uint8, device='cuda'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", hog], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"\n"
        found = evaluate(pool, RELU, code)
        other.communicate(b"\n", 60.0)
    assert (found.verdict.infra_code, found.attempts) == ("judge_out_of_memory", 2), found.verdict
    assert evaluate(pool, RELU, code).verdict.outcome == "scored"
