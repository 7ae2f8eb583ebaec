"""Finding a candidate's processes while they come and go."""

from __future__ import annotations

import os

import pytest

from server.worker import children


@pytest.mark.parametrize("then", [[], [b"S", b"%d"]], ids=["ends", "is adopted"])
def test_a_process_that_changes_while_it_is_looked_for(then: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent has ended before it was read; the second look finds it gone, or with another parent."""
    root, orphan, gone = os.getpid(), 1 << 22, (1 << 22) + 1
    answers = [[b"S", b"%d" % gone], [field % root if b"%d" in field else field for field in then]]
    plain = children._stat
    monkeypatch.setattr(os, "listdir", lambda path: [str(root), str(orphan)])
    monkeypatch.setattr(
        children, "_stat", lambda path: answers.pop(0) if answers and path == f"/proc/{orphan}/stat" else plain(path)
    )
    assert children.descendants(root) == ([orphan] if then else [])
    assert answers == []
