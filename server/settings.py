"""Every environment variable, in one place. Nothing else in the server reads the environment."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

IMAGE_KERNELBENCH_DIR = Path("/opt/KernelBench/KernelBench")


class Settings(BaseSettings):
    """Server settings. Names, defaults and meaning are those of the README's table."""

    model_config = SettingsConfigDict(env_prefix="KERNEL_ENV_", extra="ignore")

    kernelbench_dir: Path | None = Field(default=None, validation_alias="KERNELBENCH_DIR")
    gpus: Annotated[list[int], NoDecode] = [0]
    evaluator: Literal["gpu", "cpu", "mock"] = "gpu"
    max_turns: int = Field(default=4, ge=1)
    max_sessions: int = Field(default=64, ge=1)
    eval_log: Path | None = None
    eval_log_code: bool = False
    eval_log_max_mb: float = Field(default=0.0, ge=0)
    reward: Literal["speedup", "roofline"] = "speedup"
    judges_per_gpu: int = Field(default=0, ge=0, le=8)
    token: SecretStr | None = None
    cache_dir: Path = Path("~/.cache/kernel_env")
    sandbox: Literal["available", "required"] = "available"
    roofline_reject: float = Field(default=0.8, ge=0.0)
    atol: float = Field(default=1e-2, gt=0)
    rtol: float = Field(default=1e-2, ge=0)
    trials: int = Field(default=5, ge=1)
    timed_runs: int = Field(default=20, ge=3)
    compile_timeout_s: float = Field(default=150.0, gt=0)
    run_timeout_s: float = Field(default=60.0, gt=0)
    queue_timeout_s: float = Field(default=180.0, gt=0)
    step_timeout_s: float = Field(default=240.0, gt=0)

    @field_validator("gpus", mode="before")
    @classmethod
    def _comma_list(cls, value: object) -> object:
        if isinstance(value, str):
            return [int(part) for part in value.split(",") if part.strip()]
        return value

    @field_validator("token")
    @classmethod
    def _header_text(cls, value: SecretStr | None) -> SecretStr | None:
        # An empty variable is a mistake of the operator's that must not open the server.
        if value is not None and not re.fullmatch("[!-~]+", value.get_secret_value()):
            raise ValueError("a token is one or more visible ASCII characters without spaces; unset it for none")
        return value


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The process's settings, read from the environment once.

    Raises:
        pydantic.ValidationError: a variable has an invalid value; the message names it.
    """
    return Settings()
