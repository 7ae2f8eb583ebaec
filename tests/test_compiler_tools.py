"""What a host lacks of its compilers, so that a compile error is not the submission's."""

from __future__ import annotations

import pytest

from server.worker import tools


@pytest.mark.parametrize("lacks", ["c++", "as", "ld", "nvcc", "ninja", None])
def test_every_part_of_a_compiler_is_missed(lacks: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    present = {"c++", "g++", "gcc", "as", "ld", "nvcc", "ninja"} - {lacks}
    monkeypatch.setattr(tools.shutil, "which", lambda name, path: name if name in present else None)
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    assert tools.missing_tools("cuda", "cuda") == ([lacks] if lacks else [])
