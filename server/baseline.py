"""Times the references of many tasks ahead of training, with the judges that a server starts. Touches the evaluator.

The times go where the judges keep them, KERNEL_ENV_CACHE_DIR; what is there already takes no time.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from server.evaluator import Evaluator, create_evaluator
from server.settings import Settings
from server.submission import evaluation_request
from server.tasks import Task, TaskSource
from server.text import bound

# The judge times the reference before it looks at a submission. This one ends there.
_NO_SUBMISSION = "# times the reference\n"
_EXPECTED = "missing_model"


def measure(
    settings: Settings, split: str | None, only: str, evaluator: Evaluator | None = None
) -> list[tuple[str, str]]:
    """Time what is not known yet; the tasks that could not be timed, with the reasons.

    Args:
        split: "train", "eval", or None for all tasks.
        only: a part of the task's id.
        evaluator: one to use instead of the one that the settings name; not started yet.

    Raises:
        EvaluatorUnavailable: the evaluator cannot run here.
        TaskSourceError: there are no usable tasks.
    """
    evaluator = evaluator if evaluator is not None else create_evaluator(settings)
    source = TaskSource.open(settings, evaluator.name)
    tasks = [task for task_id in source.task_ids if only in task_id and _wanted(task := source.get(task_id), split)]
    try:
        evaluator.start()
        return asyncio.run(_measure(settings, evaluator, tasks))
    finally:
        evaluator.close()


def _wanted(task: Task, split: str | None) -> bool:
    admitted = task.admission is None or task.admission.admitted
    return admitted and split in (None, task.split)


async def _measure(settings: Settings, evaluator: Evaluator, tasks: list[Task]) -> list[tuple[str, str]]:
    failed: list[tuple[str, str]] = []
    waiting = deque(tasks)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(tasks))

        async def session() -> None:
            while waiting:
                task = waiting.popleft()
                progress.update(bar, description=task.task_id)
                request = evaluation_request(settings, uuid.uuid4().hex, task, "triton", _NO_SUBMISSION)
                result = await evaluator.evaluate(request, settings.step_timeout_s)
                verdict = result.verdict
                if verdict.outcome != _EXPECTED:
                    reason = verdict.infra_detail or verdict.feedback or verdict.outcome
                    failed.append((task.task_id, bound(reason.strip().splitlines()[-1], 300)))
                progress.advance(bar)

        await asyncio.gather(*(session() for _ in evaluator.status()["workers"] or [None]))
    return failed
