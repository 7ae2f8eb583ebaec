"""The part of the file tree that submissions see: what it shows, hides, and does without. Needs root on Linux."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
if sys.platform != "linux" or os.geteuid() != 0:
    pytest.skip("needs root on Linux", allow_module_level=True)

from server.worker import view
from tests.sandbox_hosts import FULL, ROOT, start

VIEW = """
import ctypes, json, os, sys
from server.worker.view import View
seen, hidden, shown, work, *optional = json.loads(sys.argv[1])
assert ctypes.CDLL(None).unshare(0x00020000) == 0
View(tuple(hidden), tuple(shown), tuple(optional)).mount(work, 1 << 26, fresh_proc=False)
print(json.dumps([path for path in seen if os.path.exists(path)]))
"""


def test_a_view_shows_the_environment_inside_the_project_and_hides_the_package_inside_the_environment(tmp_path):
    start(FULL)  # skips where there are no mount namespaces
    project = tmp_path / "project"
    packages = project / ".venv" / "lib" / "site-packages"
    for path in (project / "examples", packages / "torch", packages / "server", tmp_path / "work"):
        path.mkdir(parents=True)
        (path / "file").touch()
    (project / "link").symlink_to("examples")
    (packages / "link").symlink_to("server")
    hidden, shown = [str(project), str(packages / "server")], [str(project / ".venv")]
    wanted = [str(packages / "torch" / "file")]
    secret = [str(project / "examples" / "file"), str(project / "link" / "file"), str(packages / "server" / "file")]

    arguments = json.dumps([wanted + secret, [*hidden, "/tmp"], shown, str(tmp_path / "work")])
    done = subprocess.run([sys.executable, "-c", VIEW, arguments], cwd=ROOT, capture_output=True, text=True)
    assert json.loads(done.stdout) == wanted, done.stderr

    readable = view.View(tuple(hidden), tuple(shown)).readable()
    assert [path for path in wanted + secret if any(path.startswith(f"{root}/") for root in readable)] == wanted
    assert not {str(project / "link"), str(packages / "link")} & set(readable)


@pytest.mark.parametrize("optional", [True, False])
def test_a_view_does_without_the_compilers_kit_where_its_cache_is_gone_and_without_nothing_else(tmp_path, optional):
    start(FULL)  # skips where there are no mount namespaces
    for name in ("cache", "hidden", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "hidden" / "file").touch()
    kit = str(tmp_path / "cache" / "kit")
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").touch()
    seen, hidden = [str(tmp_path / "hidden" / "file")], [str(tmp_path / "hidden")]
    arguments = json.dumps([seen, hidden, [kit], str(tmp_path / "work"), *([kit] if optional else [])])
    done = subprocess.run([sys.executable, "-c", VIEW, arguments], cwd=ROOT, capture_output=True, text=True)
    if optional:
        assert json.loads(done.stdout) == [], done.stderr
    else:
        assert "NotADirectoryError" in done.stderr


def test_the_runtime_is_what_was_imported_and_not_where_the_server_was_started(monkeypatch, tmp_path):
    imported, other = tmp_path / "imported", tmp_path / "other"
    for path in (imported, other):
        path.mkdir()
        monkeypatch.syspath_prepend(str(path))
    (imported / "kernel_env_probe_module.py").touch()
    importlib.import_module("kernel_env_probe_module")
    monkeypatch.setitem(sys.modules, "kernel_env_probe_module", sys.modules["kernel_env_probe_module"])
    found = view.runtime_directories(view.project_directories())
    assert str(imported) in found
    assert os.path.realpath(sys.prefix) in found
    assert not {str(other), str(ROOT)} & found


def test_the_project_is_its_tree_or_its_installed_packages(monkeypatch, tmp_path):
    assert view.project_directories() == (str(ROOT),)
    for name in ("server/worker", "kernel_env", "torch"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(view, "__file__", str(tmp_path / "server" / "worker" / "view.py"))
    assert view.project_directories() == (str(tmp_path / "server"), str(tmp_path / "kernel_env"))
