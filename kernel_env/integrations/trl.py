"""Environment class for TRL's GRPOTrainer (``environment_factory=KernelBenchTool``).

Touches the network through `kernel_env.KernelEnv`, and nothing before the first reset: TRL builds one instance a
rollout and probes one more. Imports neither TRL nor, before the first reset, the client.
"""

from __future__ import annotations

import logging
import math
import os
from contextlib import suppress
from typing import Any, Protocol

from kernel_env.errors import InfrastructureFault, InvalidRequestError

logger = logging.getLogger(__name__)

URL_VARIABLE = "KERNEL_ENV_URL"
DEFAULT_URL = "http://localhost:8000"
RESET_COLUMNS = ("seed", "task_id", "split", "language")


class Session(Protocol):
    """What is used of the synchronous client."""

    def reset(self, **kwargs: Any) -> Any: ...

    def step(self, action: Any) -> Any: ...

    def close(self) -> None: ...


def _open_session(url: str) -> Session:
    from kernel_env import KernelEnv

    return KernelEnv(base_url=url).sync()


def _action(code: str) -> Any:
    from kernel_env import KernelAction

    return KernelAction(code=code)


class KernelBenchTool:
    """One rollout's session with a kernel_env server, at the address in ``KERNEL_ENV_URL``.

    The server must allow at least as many sessions as the trainer's generation batch has rollouts
    (``KERNEL_ENV_MAX_SESSIONS``). TRL offers every public method but ``reset`` and ``get_reward`` to the model as a
    tool, so there is no public ``close``: the connection ends with the instance or the process.
    """

    def __init__(self) -> None:
        self._url = os.environ.get(URL_VARIABLE, DEFAULT_URL)
        self._session: Session | None = None
        self._best = 0.0
        self._faulted = False
        self._done = True

    def reset(self, **columns: Any) -> str | None:
        """Start an episode; returns the problem, which TRL appends to the prompt.

        Args:
            columns: the dataset's row. "seed", "task_id", "split" and "language" are sent to the server, others are
                ignored. One of "seed" and "task_id" is needed, so that all rollouts of a group get the same task.

        Raises:
            ValueError: the row has neither a seed nor a task_id.
            InvalidRequestError: the server has no such task, split or language.
            Exception: the server cannot be reached or has no free session, also on a second, fresh connection.
        """
        chosen = {name: columns[name] for name in RESET_COLUMNS if columns.get(name) is not None}
        if "seed" not in chosen and "task_id" not in chosen:
            raise ValueError("the dataset needs a 'seed' or a 'task_id' column")
        self._best, self._faulted, self._done = 0.0, False, True
        try:
            observation = self._connect().reset(**chosen).observation
        except InvalidRequestError:
            raise
        except Exception as error:
            # A session that idled through an optimiser step may have been closed by the server or a proxy.
            logger.warning("kernel_env: reset failed, trying a new connection: %s", error)
            self._disconnect()
            try:
                observation = self._connect().reset(**chosen).observation
            except Exception:
                self._disconnect()
                raise
        self._done = False
        return observation.problem

    def submit_kernel(self, code: str) -> str:
        """Submit a kernel. It is compiled, checked for correctness and timed.

        Args:
            code: Complete Python source of a module that defines class ModelNew.

        Returns:
            How far the submission got and what to change.
        """
        if self._done or self._session is None:
            return "The episode is over: no more submissions are accepted."
        # Built outside the try: a submission that the action or the server refuses (too long) is the model's fault.
        # TRL shows it the exception and the episode goes on.
        action = _action(code)
        try:
            result = self._session.step(action)
        except InvalidRequestError:
            raise
        except InfrastructureFault as fault:
            self._faulted = True
            return fault.message
        except Exception as error:
            # A bad kernel never raises, so this is a fault of the connection or the server. The episode is lost.
            logger.warning("kernel_env: a submission was lost: %s", error)
            self._faulted, self._done = True, True
            self._disconnect()
            return "The evaluation server failed. This is not the fault of your kernel. The episode is over."
        observation = result.observation
        self._done = bool(result.done)
        reward: float | None = result.reward
        if reward is None or not math.isfinite(reward):
            self._faulted = True
        else:
            self._faulted = False
            self._best = max(self._best, float(reward))
        return (
            f"Submission {observation.turn} of {observation.max_turns}, stage: {observation.stage.value}.\n"
            f"{observation.feedback}"
        )

    def get_reward(self) -> float | None:
        """The best reward among the episode's submissions, 0.0 when there was none.

        None when the last submission met an infrastructure fault: TRL leaves such a rollout out of its group.
        """
        return None if self._faulted else self._best

    def _connect(self) -> Session:
        if self._session is None:
            self._session = _open_session(self._url)
        return self._session

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception):
                session.close()
