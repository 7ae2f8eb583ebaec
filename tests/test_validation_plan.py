"""validation/runtime.json, which `openenv validate` of openenv 0.10 plays against the image."""

from __future__ import annotations

import json
from pathlib import Path

from kernel_env import demo_kernels
from server.reset_args import check_names
from server.tasks import TaskSource

PLAN = json.loads((Path(__file__).parent.parent / "validation" / "runtime.json").read_text(encoding="utf-8"))


def test_the_plan_is_an_episode_with_a_bad_and_a_good_kernel() -> None:
    """No solution that the package does not hold anyway: the file is in the image too."""
    assert [action["code"] for action in PLAN["actions"]] == [demo_kernels.TORCH_FALLBACK, demo_kernels.GOOD]
    check_names(PLAN["reset"]["options"])
    assert TaskSource.builtin().get(PLAN["reset"]["options"]["task_id"]).task_id == "level1/23_Softmax"
