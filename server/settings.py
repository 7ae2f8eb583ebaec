"""Every environment variable, in one place. Nothing else in the server reads the environment."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

PREFIX = "KERNEL_ENV_"
IMAGE_KERNELBENCH_DIR = Path("/opt/KernelBench/KernelBench")
MAX_JUDGES = 8
HOST_BYTES_PER_JUDGE = 12 << 30


class Settings(BaseSettings):
    """Server settings. Names, defaults and meaning are those of the README's table."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore")

    kernelbench_dir: Path | None = Field(default=None, validation_alias="KERNELBENCH_DIR")
    gpus: Annotated[list[int], NoDecode] = [0]
    evaluator: Literal["gpu", "cpu", "mock"] = "gpu"
    max_turns: int = Field(default=4, ge=1)
    max_sessions: int = Field(default=64, ge=1)
    eval_log: Path | None = None
    eval_log_code: bool = False
    eval_log_max_mb: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    reward: Literal["speedup", "roofline"] = "speedup"
    infra_failure: Literal["none", "error_frame"] = "none"
    judges_per_gpu: int = Field(default=0, ge=0, le=MAX_JUDGES)
    token: SecretStr | None = None
    cache_dir: Path = Path("~/.cache/kernel_env")
    sandbox: Literal["available", "required"] = "available"
    roofline_reject: float = Field(default=0.8, ge=0.0, allow_inf_nan=False)
    atol: float = Field(default=1e-2, gt=0, allow_inf_nan=False)
    rtol: float = Field(default=1e-2, ge=0, allow_inf_nan=False)
    trials: int = Field(default=5, ge=1)
    timed_runs: int = Field(default=20, ge=3)
    compile_timeout_s: float = Field(default=150.0, ge=1, allow_inf_nan=False)
    run_timeout_s: float = Field(default=60.0, ge=1, allow_inf_nan=False)
    queue_timeout_s: float = Field(default=180.0, gt=0, allow_inf_nan=False)
    step_timeout_s: float = Field(default=240.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_unset(cls, values: Any) -> Any:
        # Compose files pass variables that are empty. But an empty token must not open the server: that is an error.
        if isinstance(values, dict):
            return {name: value for name, value in values.items() if value != "" or name == "token"}
        return values

    @field_validator("gpus", mode="before")
    @classmethod
    def _comma_list(cls, value: object) -> object:
        if isinstance(value, str):
            parts = [part.strip() for part in value.split(",") if part.strip()]
            if not all(part.isascii() and part.isdigit() for part in parts):
                raise ValueError("a comma list of GPU ids, such as 0 or 0,1")
            return [int(part) for part in parts]
        return value

    @field_validator("gpus")
    @classmethod
    def _usable_gpus(cls, value: list[int]) -> list[int]:
        if not value or len(set(value)) != len(value) or min(value) < 0:
            raise ValueError("at least one GPU id, none twice and none below 0")
        return value

    @field_validator("token")
    @classmethod
    def _header_text(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not re.fullmatch("[!-~]+", value.get_secret_value()):
            raise ValueError("a token is one or more visible ASCII characters without spaces; unset it for none")
        return value

    def judges_on_each(self, devices: int) -> int:
        """As many judges as the setting says; else two CPU cores for each, and memory for what they compile."""
        if self.judges_per_gpu or self.evaluator == "cpu":
            return max(1, self.judges_per_gpu)
        cores = len(os.sched_getaffinity(0))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return max(1, min(MAX_JUDGES, cores // (2 * devices), memory // (HOST_BYTES_PER_JUDGE * devices)))


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The process's settings, read from the environment once.

    Raises:
        pydantic.ValidationError: a variable has an invalid value; the message names it.
    """
    return Settings()


def explain(error: ValidationError) -> str:
    """What is wrong with the settings, by the names of the environment variables."""
    problems = []
    for problem in error.errors():
        name = str(problem["loc"][0]) if problem["loc"] else ""
        variable = f"{PREFIX}{name.upper()}" if name in Settings.model_fields else name
        problems.append(f"{variable}: {problem['msg']}")
    return "; ".join(problems)
