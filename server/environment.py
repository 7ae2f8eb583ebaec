"""One session's episodes: reset hands out a task, step has a submission judged. Touches the log and the evaluator.

Nothing here runs submitted code. A bad request is refused and changes nothing; a bad kernel is an observation; a fault
of ours is an observation without a reward or, where the operator chose so, refused like a bad request.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, NoReturn

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata

from kernel_env.models import InfraCode, KernelAction, KernelObservation, KernelState, Outcome
from server import prompts
from server.disconnect import client_gone
from server.errors import InvalidRequest, TaskSourceError
from server.rescore import replay_fields
from server.reset_args import check_names, parse_deadline, parse_episode_id, parse_language
from server.scoring import infrastructure
from server.submission import Judged, Services, describe, judge
from server.tasks import Task
from server.text import bound
from server.version import VERSION

MAX_MESSAGE_CHARS = 2000


class Refused(Exception):
    """Ends up in an error frame as its text, "[code] message"; the client makes a typed error of it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"[{code}] {bound(message, MAX_MESSAGE_CHARS)}")
        self.code = code


class Faulted(Refused):
    """A fault of ours as an error frame: "[infrastructure_fault] gpu_lost: message"."""

    def __init__(self, infra_code: InfraCode, message: str) -> None:
        super().__init__("infrastructure_fault", f"{infra_code.value}: {message}")


@dataclass
class _Episode:
    episode_id: str
    task: Task
    split: str | None
    language: prompts.Language
    deadline_s: float
    step_count: int = 0
    turn: int = 0
    best_reward: float | None = None
    done: bool = False


class KernelEnvironment(Environment[KernelAction, KernelObservation, KernelState]):
    """The OpenEnv environment; one instance serves one session. The constructor does no work."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services
        self._session_id = uuid.uuid4().hex
        self._episode: _Episode | None = None
        self._closed = False

    # ------------------------------------------------------------ OpenEnv's interface

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> KernelObservation:
        """Start an episode.

        Args:
            seed: any integer; the same seed and split give the same task on every machine. None: a random task.
            episode_id: echoed in `state`; made up when None.
            kwargs: `task_id` (wins over the seed), `split` ("train" or "eval"), `language` ("triton" or "cuda"), and
                `step_deadline_s`, the most seconds a step of this episode may take, up to 3600.

        Raises:
            Refused: an argument is unknown or invalid. The episode before, if any, goes on.
        """
        try:
            observation, episode = self._start_episode(seed, episode_id, kwargs)
        except Exception as exc:
            self._refuse_reset(exc)
        self._episode = episode
        return observation

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> KernelObservation:
        """`reset` without blocking the event loop: it may read a task file."""
        return await asyncio.to_thread(lambda: self.reset(seed, episode_id, **kwargs))

    def step(self, action: KernelAction, timeout_s: float | None = None, **kwargs: Any) -> KernelObservation:
        """Judge one submission and wait for the answer; for callers without an event loop, such as /web.

        See `step_async`, which the WebSocket sessions use.
        """
        return _run_blocking(self.step_async(action, timeout_s))

    async def step_async(
        self, action: KernelAction, timeout_s: float | None = None, **kwargs: Any
    ) -> KernelObservation:
        """Judge one submission.

        Every submission to a live episode uses a turn, except one that met a fault of ours: then the reward is None,
        `infra_code` says why, and it may be sent again. Before reset and after the last turn nothing is judged: the
        outcome is NOT_RESET or EPISODE_OVER and the reward 0.

        Args:
            timeout_s: tightens the episode's deadline for this step, in seconds.

        Raises:
            Faulted: a fault of ours, with KERNEL_ENV_INFRA_FAILURE=error_frame and over the WebSocket, the one place
                with error frames. The episode is as it was before the step.
        """
        self._check_open()
        episode = self._episode
        if episode is None or episode.done:
            return self._not_judged(episode)
        deadline_s = min(episode.deadline_s, timeout_s) if timeout_s is not None else episode.deadline_s
        eval_id = uuid.uuid4().hex
        try:
            with self._services.metrics.in_work():
                judged = await judge(self._services, episode.task, episode.language, action.code, deadline_s, eval_id)
        except asyncio.CancelledError:  # the server is stopping, or an HTTP client is gone: nobody reads an answer
            score = infrastructure(InfraCode.CANCELLED)
            self._report(episode, action.code, Judged(eval_id, score, infra_detail="the step's task was cancelled"))
            raise
        infra_code = judged.score.fields.get("infra_code")
        error_frame = self._services.settings.infra_failure == "error_frame" and client_gone() is not None
        if infra_code is not None and error_frame:
            raise Faulted(infra_code, self._report(episode, action.code, judged).feedback)
        episode.step_count += 1
        if judged.score.uses_turn:
            episode.turn += 1
            episode.done = episode.turn >= self._services.settings.max_turns
        if judged.score.reward is not None:
            best = episode.best_reward
            episode.best_reward = judged.score.reward if best is None else max(best, judged.score.reward)
        return self._report(episode, action.code, judged)

    @property
    def state(self) -> KernelState:
        """The session's state. `step_count` counts the answered steps of the episode, faults of ours included."""
        max_turns = self._services.settings.max_turns
        episode = self._episode
        if episode is None:
            return KernelState(max_turns=max_turns)
        return KernelState(
            episode_id=episode.episode_id,
            step_count=episode.step_count,
            task_id=episode.task.task_id,
            language=episode.language,
            split=episode.split,
            turn=episode.turn,
            max_turns=max_turns,
            best_reward=episode.best_reward,
            done=episode.done,
        )

    def get_metadata(self) -> EnvironmentMetadata:
        """What GET /metadata says."""
        return EnvironmentMetadata(
            name="kernel_env",
            description="Write fast, correct GPU kernels (Triton or CUDA) for KernelBench tasks.",
            version=VERSION,
        )

    def close(self) -> None:
        """End the session. The shared services stay up; a second call does nothing."""
        self._closed = True
        self._episode = None

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    # ------------------------------------------------------------ reset

    def _start_episode(
        self, seed: object, episode_id: object, kwargs: dict[str, Any]
    ) -> tuple[KernelObservation, _Episode]:
        self._check_open()
        check_names(kwargs)
        settings = self._services.settings
        language = parse_language(kwargs.get("language"))
        parsed_id = parse_episode_id(episode_id)
        deadline_s = parse_deadline(kwargs.get("step_deadline_s"), settings.step_timeout_s)
        # `pick` checks the types of what it is given.
        task = self._services.tasks.pick(seed, kwargs.get("split"), kwargs.get("task_id"))  # pyright: ignore[reportArgumentType]
        episode = _Episode(parsed_id, task, task.split, language, deadline_s)
        device = self._services.evaluator.device
        problem = prompts.problem_text(
            task_id=task.task_id,
            source=task.source,
            language=language,
            evaluator=settings.evaluator,
            gpu_name=device.name if device is not None and device.kind == "cuda" else None,
            max_turns=settings.max_turns,
            atol=settings.atol,
            rtol=settings.rtol,
            extra_inputs=prompts.extra_inputs_text(task.task_id, task.admission),
            trials=settings.trials,
            compile_timeout_s=settings.compile_timeout_s,
            run_timeout_s=settings.run_timeout_s,
            reward=settings.reward,
            small=task.small,
        )
        self._services.log.write(
            "reset",
            session_id=self._session_id,
            episode_id=parsed_id,
            task_id=task.task_id,
            task_hash=task.hash,
            level=task.level,
            split=task.split,
            language=language,
            seed=seed,
            max_turns=settings.max_turns,
            step_deadline_s=deadline_s,
            evaluator=self._services.evaluator.name,
        )
        return self._observe(episode, problem=problem), episode

    def _refuse_reset(self, exc: Exception) -> NoReturn:
        """Log a failed reset and raise what the client may know of it."""
        if isinstance(exc, InvalidRequest):
            refused, detail = Refused(exc.code.value, exc.message), exc.message
        elif isinstance(exc, Refused):
            refused, detail = exc, str(exc)
        else:
            reason = "the task's file is not usable" if isinstance(exc, TaskSourceError) else "an unexpected fault"
            refused = Refused("internal_error", f"The server could not reset: {reason}. Its log says more.")
            detail = describe(exc)
        self._services.log.write("reset", session_id=self._session_id, error=refused.code, detail=detail)
        raise refused from exc

    def _check_open(self) -> None:
        if self._closed:
            raise Refused("session_closed", "This session is closed.")

    def _not_judged(self, episode: _Episode | None) -> KernelObservation:
        """The answer to a step before reset or after the last turn: reward 0, nothing judged, nothing counted."""
        if episode is None:
            outcome, feedback = Outcome.NOT_RESET, "Nothing was judged: call reset first, which hands out a task."
            if client_gone() is None:
                feedback += " Over HTTP no step follows a reset: play episodes over the WebSocket, with KernelEnv."
        else:
            outcome = Outcome.EPISODE_OVER
            feedback = "Nothing was judged: the episode has used all of its turns. Call reset to start another."
        observation = self._observe(episode, outcome=outcome, feedback=feedback, reward=0.0)
        self._services.log.write(
            "step",
            session_id=self._session_id,
            episode_id=episode.episode_id if episode else None,
            eval_id=None,
            outcome=outcome,
            reward=0.0,
        )
        self._services.metrics.answered(observation.stage, outcome)
        return observation

    # ------------------------------------------------------------ what comes out

    def _observe(self, episode: _Episode | None, **fields: Any) -> KernelObservation:
        common: dict[str, Any] = {
            "evaluator": self._services.evaluator.name,
            "max_turns": self._services.settings.max_turns,
        }
        if episode is not None:
            common |= {
                "task_id": episode.task.task_id,
                "split": episode.split,
                "language": episode.language,
                "turn": episode.turn,
                "best_reward": episode.best_reward,
                "done": episode.done,
            }
        return KernelObservation(**common, **fields)

    def _report(self, episode: _Episode, code: str, judged: Judged) -> KernelObservation:
        """The observation of a judged step, which it logs and counts."""
        observation = self._observe(
            episode,
            reward=judged.score.reward,
            phase_seconds={name: round(seconds, 6) for name, seconds in judged.phase_seconds.items()},
            gpu=judged.gpu,
            **judged.score.fields,
        )
        wanted = {
            *("turn", "stage", "outcome", "reward", "done", "compiled", "correct", "trials_passed", "trials_total"),
            *("max_abs_error", "speedup", "t_ref_ms", "t_new_ms", "t_ref_spread", "t_new_spread", "timed_runs"),
            *("t_new_interval_ms", "kernel_time_fraction", "sm_clock_mhz", "throttled"),
            *("timing_method", "bound", "arithmetic_intensity", "t_min_ms", "roofline_frac", "ref_roofline_frac"),
            *("evaluator", "gpu", "phase_seconds", "infra_code", "task_id", "language", "split", "best_reward"),
        }
        self._services.log.write(
            "step",
            session_id=self._session_id,
            episode_id=episode.episode_id,
            eval_id=judged.eval_id,
            task_hash=episode.task.hash,
            code_sha256=hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest(),
            code_chars=len(code),
            step_count=episode.step_count,
            attempts=judged.attempts,
            infra_detail=judged.infra_detail or None,
            retried=judged.retried,
            clocks_ms=judged.clocks_ms,
            feedback=observation.feedback,
            **observation.model_dump(include=wanted),
            **replay_fields(self._services.settings, judged.verdict, judged.device, code),
        )
        self._services.metrics.answered(
            observation.stage, observation.outcome, observation.infra_code, observation.phase_seconds
        )
        self._services.metrics.retried(entry["after"] for entry in judged.retried)
        return observation


def _run_blocking(coroutine: Coroutine[Any, Any, KernelObservation]) -> KernelObservation:
    """The coroutine's result, from a loop of its own on a thread of its own: the caller's thread may run one."""
    results: list[KernelObservation] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(asyncio.run(coroutine))
        except BaseException as exc:
            errors.append(exc)

    thread = threading.Thread(target=work, name="kernel-env-step")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
