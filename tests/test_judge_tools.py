"""What a host lacks of its compilers, so that a compile error is not the submission's."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from server.worker import judge


@pytest.mark.parametrize("lacks", ["c++", "as", "ld", "nvcc", "ninja", None])
def test_every_part_of_a_compiler_is_missed(lacks: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = {"c++", "g++", "gcc", "as", "ld", "nvcc", "ninja"} - {lacks}
    monkeypatch.setattr(judge.shutil, "which", lambda name, path: name if name in tools else None)
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    assert judge._missing_tools("cuda", "cuda") == ([lacks] if lacks else [])
