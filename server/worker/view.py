"""What a candidate sees of the host's files: not the project, not the shared temporary directories, not the homes.

Two ways to the same end: `View.mount` covers the hidden directories in a mount namespace, `View.readable` lists what
is left for Landlock to allow. Either way the Python, the compilers and the libraries that submissions need stay
visible where they lie, even below a hidden directory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import shutil
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from server.worker.trash import remove_tree

_MS_NOSUID = 2
_MS_NODEV = 4
_MS_NOEXEC = 8
_MS_BIND = 4096
_MS_REC_PRIVATE = 16384 | 262144

WORKDIR = "/tmp"
"""Where a candidate with a mount namespace sees its working directory."""
SHARED_MEMORY = "/dev/shm"
_SHARED = (WORKDIR, "/var/tmp", SHARED_MEMORY)
# For a directory that only hides something.
_EMPTY_OPTIONS = b"mode=755,size=64k,nr_inodes=4k"
# In a private directory: an empty file takes memory too, about a kilobyte, which its size does not count.
_MAX_PRIVATE_FILES = 1 << 15

_libc = ctypes.CDLL(None, use_errno=True)


def _mount(source: str, target: str, kind: str, flags: int, options: bytes | None = None) -> None:
    if _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"mounting {target}: {os.strerror(error)}")


def _below(path: str, directory: str) -> bool:
    return path.startswith(directory.rstrip("/") + "/")


def project_directories() -> tuple[str, ...]:
    """Where this project's own files lie: the whole source tree, or the packages in site-packages."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    if os.path.isfile(os.path.join(root, "pyproject.toml")):
        return (root,)
    return tuple(path for name in ("server", "kernel_env") if os.path.isdir(path := os.path.join(root, name)))


def runtime_directories(project: Iterable[str]) -> set[str]:
    """What submissions import, execute and link: the interpreter's directories and those of everything imported so far.

    A search path from which nothing was imported, such as the directory in which the server was started, is not among
    them.
    """
    wanted = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable))}
    for name in ("CUDA_HOME", "CUDA_PATH", "KERNEL_ENV_EXTENSION_KIT"):
        wanted.add(os.environ.get(name, ""))
    for name in ("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH"):
        wanted.update(os.environ.get(name, "").split(os.pathsep))
    imported = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and "." not in name:
            directory = os.path.dirname(os.path.realpath(file))
            imported.add(os.path.dirname(directory) if hasattr(module, "__path__") else directory)
    for path in map(os.path.realpath, filter(None, sys.path)):
        if path in imported or os.path.basename(path) in ("site-packages", "dist-packages"):
            wanted.add(path)
    real = {os.path.realpath(path) for path in wanted if os.path.isabs(path) and os.path.isdir(path)}
    return real - set(project) - {"/"}


def _sticky_directories() -> set[str]:
    """Directories at the top of the tree in which everybody may create files."""
    found: set[str] = set(_SHARED)
    for parent in ("/", "/var", "/run", "/dev"):
        try:
            entries = list(os.scandir(parent))
        except OSError:
            continue
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False) and entry.stat().st_mode & 0o1002 == 0o1002:
                    found.add(entry.path)
    return {path for path in found if os.path.isdir(path) and not os.path.islink(path)}


@dataclass(frozen=True)
class View:
    """`hidden` directories, and the `shown` ones below them; both absolute and free of symbolic links."""

    hidden: tuple[str, ...]
    shown: tuple[str, ...]
    optional: tuple[str, ...] = ()
    """Of the shown, what may go away: the compilers' kit, with the cache that it lies in."""
    unreachable: tuple[str, ...] = ()
    """Parts of Python that another user reaches only when they are mounted: they lie below a closed directory."""

    @classmethod
    def of_host(cls, other_user: bool) -> View:
        """The view for submissions that run as another user than this process, or as the same."""
        project = project_directories()
        runtime = runtime_directories(project)
        hidden = {*project, *_sticky_directories()}
        unreachable = set()
        python = {os.path.realpath(path) for path in (*sys.path, sys.prefix, sys.base_prefix)}
        if other_user:
            for path in runtime:
                if (closed := _closed_ancestor(path)) is not None:
                    hidden.add(closed)
                    if path in python:
                        unreachable.add(path)
        else:
            home = os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir) if _has_account() else "/"
            if home != "/" and os.path.isdir(home):
                hidden.add(home)
        hidden -= runtime
        shown = {path for path in runtime if any(_below(path, directory) for directory in hidden)}
        kit = os.path.realpath(os.environ.get("KERNEL_ENV_EXTENSION_KIT") or "/")
        optional = (kit,) if kit in shown else ()
        return cls(tuple(sorted(hidden)), tuple(sorted(shown)), optional, tuple(sorted(unreachable)))

    def readable(self, without: Iterable[str] = ()) -> list[str]:
        """The largest directories and files that are not hidden, for a host without mount namespaces. The files
        `without` are as good as hidden."""
        hidden = {*self.hidden, *without}
        found = self._visible("/", hidden)
        for path in self.shown:
            found += self._visible(path, hidden)
        return found

    def _visible(self, directory: str, hidden: set[str]) -> list[str]:
        """What may be read of `directory`, itself not hidden. Symbolic links are left to their targets."""
        if not any(_below(path, directory) for path in hidden):
            return [directory]
        found = []
        try:
            entries = list(os.scandir(directory))
        except OSError:
            return []
        for entry in entries:
            if entry.path not in hidden and not entry.is_symlink():
                found += self._visible(entry.path, hidden)
        return found

    def mount(self, workdir: str, memory_bytes: int, fresh_proc: bool, without: Iterable[str] = ()) -> None:
        """Build the view in this process's own mount namespace, with a copy of what is in `workdir` at WORKDIR.

        The copy is in memory, of at most `memory_bytes`, and so are the other private directories, together of as much:
        they end with the namespace, however many files a candidate makes. The files `without` are empty.

        Raises:
            OSError: the host does not allow it.
        """
        _mount("none", "/", "none", _MS_REC_PRIVATE)
        if fresh_proc:
            _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
        # Opened before anything is covered: a path below /tmp is found only now.
        work = os.open(workdir, os.O_PATH | os.O_CLOEXEC)
        handles = {}
        for path in self.shown:
            try:
                handles[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                if path not in self.optional:
                    raise
        os.umask(0o022)
        private = {path for path in self.hidden if path != WORKDIR and _is_sticky(path)}
        share = memory_bytes // max(1, len(private))
        private_options = b"mode=1777,size=%d,nr_inodes=%d" % (share, _MAX_PRIVATE_FILES)
        # Parents first, so that each lies over or inside what was done before it.
        for path in sorted({*self.hidden, *self.shown}, key=lambda path: path.split("/")):
            if path in handles:
                os.makedirs(path, exist_ok=True)
                _mount(f"/proc/self/fd/{handles[path]}", path, "none", _MS_BIND)
            elif path == WORKDIR:
                _private_copy(f"/proc/self/fd/{work}", path, memory_bytes)
            elif os.path.isdir(path):
                options = private_options if path in private else _EMPTY_OPTIONS
                _mount("tmpfs", path, "tmpfs", _MS_NOSUID | _MS_NODEV, options)
        for path in without:
            if os.path.isfile(path):
                _mount(os.devnull, path, "none", _MS_BIND)
        for handle in (work, *handles.values()):
            os.close(handle)

    def sweep(self, uid: int) -> None:
        """Remove what a candidate without a view or Landlock left in the shared directories."""
        for directory in self.hidden:
            try:
                entries = [entry for entry in os.scandir(directory) if entry.stat(follow_symlinks=False).st_uid == uid]
            except OSError:
                continue
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    remove_tree(entry.path)
                else:
                    os.unlink(entry.path)


def _private_copy(source: str, path: str, memory_bytes: int) -> None:
    """Mount memory over `path`, and copy the directory `source` and its owner there."""
    owner = os.stat(source)
    options = b"mode=700,uid=%d,gid=%d,size=%d,nr_inodes=%d"
    options %= (owner.st_uid, owner.st_gid, memory_bytes, _MAX_PRIVATE_FILES)
    _mount("tmpfs", path, "tmpfs", _MS_NOSUID | _MS_NODEV, options)
    shutil.copytree(source, path, dirs_exist_ok=True)
    os.chmod(path, 0o700)
    for parent, _, files in os.walk(path):
        for entry in (parent, *(os.path.join(parent, name) for name in files)):
            os.chown(entry, owner.st_uid, owner.st_gid)


def _is_sticky(path: str) -> bool:
    return os.path.isdir(path) and bool(os.stat(path).st_mode & stat.S_ISVTX)


def _has_account() -> bool:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def _closed_ancestor(path: str) -> str | None:
    """The first directory on the way to `path` that other users may not pass."""
    parts = path.strip("/").split("/")
    for depth in range(1, len(parts) + 1):
        ancestor = "/" + "/".join(parts[:depth])
        if not os.stat(ancestor).st_mode & 0o001:
            return ancestor
    return None
