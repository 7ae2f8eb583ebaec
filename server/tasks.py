"""Which tasks there are, which split each is in, and which one a reset gets.

Reads task files (KernelBench's directory layout) and the JSON data beside this module; never imports torch and never
runs a task. A listing is read once, a file when it is first asked for.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import re
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

from server.admission import AdmissionTable
from server.errors import InvalidRequest, RequestCode, TaskSourceError, UnknownSplitError, UnknownTaskError
from server.settings import IMAGE_KERNELBENCH_DIR, Settings
from server.worker.protocol import Admission

BUILTIN_DIR = Path(__file__).with_name("builtin_tasks")
SPLITS_FILE = Path(__file__).with_name("splits.json")
SPLITS = ("train", "eval")
EVAL_SHARE = 5
"""One task in this many is held for eval."""

_LEVELS = (1, 2, 3, 4)
_UNSPLIT_LEVELS = (4,)
_TASK_FILE = re.compile(r"(\d+_[A-Za-z0-9_.\-]+)\.py")
_MAX_SUGGESTIONS = 5
_MAX_QUERY_CHARS = 120


@dataclass(frozen=True)
class Task:
    """One task as it is handed out."""

    task_id: str
    source: str
    """The reference: a module with Model, get_inputs and get_init_inputs."""
    level: int
    split: Literal["train", "eval"] | None
    """None for level 4 and for tasks that are not admitted, which are in no split."""
    admission: Admission | None = None
    """Its trials, or why it cannot be scored; None when the tables do not know it."""
    small: bool = False
    """Whether `source` is a smaller variant of the task's file."""

    @cached_property
    def hash(self) -> str:
        """The SHA-256 of `source`, in hex: what measurements of the reference are cached under."""
        return hashlib.sha256(self.source.encode()).hexdigest()


# ---------------------------------------------------------------- splits


def order_key(task_id: str) -> tuple[str, int, str]:
    """Sorts ids by level, then number, then name."""
    level, name = task_id.split("/")
    return level, int(name.split("_")[0]), name


def freeze_splits(task_ids: Iterable[str]) -> dict[str, list[str]]:
    """The split lists for these ids: what SPLITS_FILE holds for KernelBench's 250.

    Within each level the ids are ordered by the SHA-256 of the id, and the first fifth is eval. The lists are frozen
    in the file because a task added later would otherwise move others across the line.
    """
    by_level: dict[str, list[str]] = defaultdict(list)
    for task_id in task_ids:
        by_level[task_id.split("/")[0]].append(task_id)
    lists: dict[str, list[str]] = {split: [] for split in SPLITS}
    for ids in by_level.values():
        ids.sort(key=_digest)
        held = len(ids) // EVAL_SHARE
        lists["eval"] += ids[:held]
        lists["train"] += ids[held:]
    return {split: sorted(ids, key=order_key) for split, ids in lists.items()}


def split_of(task_id: str) -> Literal["train", "eval"] | None:
    """The split of a task: the frozen lists decide, then the rule for ids that are in neither.

    The rule for somebody's own tasks: eval if the SHA-256 of the id, as an integer, is divisible by EVAL_SHARE. It
    looks at nothing but the id, so adding tasks never moves another. Level 4 is in no split.
    """
    frozen = _frozen_splits().get(task_id)
    if frozen is not None:
        return frozen
    if int(task_id.split("/")[0].removeprefix("level")) in _UNSPLIT_LEVELS:
        return None
    return "eval" if int(_digest(task_id), 16) % EVAL_SHARE == 0 else "train"


@lru_cache(maxsize=1)
def _frozen_splits() -> dict[str, Literal["train", "eval"]]:
    lists = json.loads(SPLITS_FILE.read_text(encoding="utf-8"))
    frozen: dict[str, Literal["train", "eval"]] = dict.fromkeys(lists["train"], "train")
    frozen.update(dict.fromkeys(lists["eval"], "eval"))
    return frozen


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# ---------------------------------------------------------------- small variants


def apply_overrides(source: str, overrides: Mapping[str, int | float]) -> str:
    """The source with module-level constants replaced; everything else stays byte for byte.

    Only plain assignments of one name (`batch_size = 128`) can be overridden.

    Raises:
        TaskSourceError: a name is not assigned exactly once in that form, or a value is not a number.
    """
    spans: dict[str, list[ast.expr]] = defaultdict(list)
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            spans[node.targets[0].id].append(node.value)
    lines = source.encode().splitlines(keepends=True)  # ast counts columns in UTF-8 bytes
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    edits: list[tuple[int, int, bytes]] = []
    for name, value in overrides.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TaskSourceError(f"the override {name}={value!r} is not a number")
        found = spans.get(name, [])
        if len(found) != 1:
            raise TaskSourceError(f"the constant {name!r} is assigned {len(found)} times at module level, not once")
        node = found[0]
        assert node.end_lineno is not None and node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        edits.append((begin, end, repr(value).encode()))
    text = b"".join(lines)
    for begin, end, new in sorted(edits, reverse=True):
        text = text[:begin] + new + text[end:]
    return text.decode()


def load_small_overrides(root: Path) -> dict[str, dict[str, int | float]]:
    """Every small_*.json in a task directory, merged: task id -> constants of its small variant.

    Raises:
        TaskSourceError: a file is not valid JSON of that form, or two files name the same task.
    """
    merged: dict[str, dict[str, int | float]] = {}
    for path in sorted(root.glob("small_*.json")):
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TaskSourceError(f"{path.name}: {error}") from error
        if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
            raise TaskSourceError(f"{path.name} does not map task ids to constants")
        repeated = merged.keys() & entries.keys()
        if repeated:
            raise TaskSourceError(f"{path.name} repeats {', '.join(sorted(repeated))}")
        merged.update(entries)
    return merged


# ---------------------------------------------------------------- the source


class TaskSource:
    """The tasks of one directory. Use `open`, which finds the directory the settings mean."""

    def __init__(self, root: Path, small: Mapping[str, Mapping[str, int | float]] | None = None) -> None:
        """Lists `root`, a directory with level1/ ... level4/. With `small`, tasks come in their small variants.

        Raises:
            TaskSourceError: there is no task in it.
        """
        self.root = root
        self._small = small
        self._paths = _list_tasks(root)
        self._cache: dict[str, Task] = {}
        self._admission = AdmissionTable(root)
        refused = {task_id for task_id, digest in self._admission.refused() if self._has_source(task_id, digest)}
        self.task_ids: tuple[str, ...] = tuple(sorted(self._paths, key=order_key))
        self._by_split: dict[str, list[str]] = {split: [] for split in SPLITS}
        for task_id in sorted(self.task_ids):
            split = split_of(task_id)
            if split is not None and task_id not in refused:
                self._by_split[split].append(task_id)

    @classmethod
    def open(cls, settings: Settings, evaluator: str) -> TaskSource:
        """The tasks that the settings mean: KERNELBENCH_DIR if set, else the image's KernelBench, else the built-in.

        Where the variable is not set, the `cpu` evaluator gets the built-in tasks in their small variants.

        Raises:
            TaskSourceError: KERNELBENCH_DIR is set and holds no tasks, or the built-in data is broken.
        """
        if settings.kernelbench_dir is not None:
            return cls(settings.kernelbench_dir)
        if evaluator == "cpu":
            return cls.builtin(small=True)
        return cls(IMAGE_KERNELBENCH_DIR) if IMAGE_KERNELBENCH_DIR.is_dir() else cls.builtin()

    @classmethod
    def builtin(cls, small: bool = False) -> TaskSource:
        """The built-in tasks, whatever the settings say."""
        return cls(BUILTIN_DIR, load_small_overrides(BUILTIN_DIR) if small else None)

    def ids(self, split: str) -> tuple[str, ...]:
        """The ids available in a split, sorted as text (the order that `pick` indexes).

        Raises:
            UnknownSplitError: there is no such split.
        """
        if split not in self._by_split:
            raise UnknownSplitError(split, SPLITS)
        return tuple(self._by_split[split])

    def get(self, task_id: str) -> Task:
        """The task with exactly this id.

        Raises:
            UnknownTaskError: it is not in the listing.
            TaskSourceError: its file cannot be read, or its small variant cannot be made.
        """
        if task_id in self._cache:
            return self._cache[task_id]
        path = self._paths.get(task_id)
        if path is None:
            raise UnknownTaskError(task_id, self._suggest(task_id), len(self.task_ids))
        try:
            source = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TaskSourceError(f"{task_id} cannot be read: {error}") from error
        small = False
        if self._small is not None:
            if task_id not in self._small:
                raise TaskSourceError(f"{task_id} has no small variant for the cpu evaluator")
            full, source = source, apply_overrides(source, self._small[task_id])
            small = source != full
        level = int(task_id.split("/")[0].removeprefix("level"))
        admission = self._admission.get(task_id, _digest(source))
        split = split_of(task_id) if admission is None or admission.admitted else None
        task = Task(task_id=task_id, source=source, level=level, split=split, admission=admission, small=small)
        self._cache[task_id] = task
        return task

    def _has_source(self, task_id: str, digest: str) -> bool:
        """Whether the task is here with exactly this source."""
        path = self._paths.get(task_id)
        return path is not None and hashlib.sha256(path.read_bytes()).hexdigest() == digest

    def pick(self, seed: int | None = None, split: str | None = None, task_id: str | None = None) -> Task:
        """The task of a reset. An id wins over the seed; the split is 'train' unless given.

        The same seed and split give the same task on every machine that has the same tasks: the index is a SHA-256,
        not a library's generator. Without a seed the task is random.

        Raises:
            UnknownTaskError, UnknownSplitError: no such task or split.
            InvalidRequest: an argument has the wrong type, the task cannot be scored, or the split is empty here.
            TaskSourceError: the task's file is not usable.
        """
        _check_type("split", split, str)
        _check_type("task_id", task_id, str)
        _check_type("seed", seed, int)
        split = "train" if split is None else split
        ids = self.ids(split)
        if task_id is not None:
            task = self.get(task_id)
            if task.admission is not None and not task.admission.admitted:
                message = f"{task_id} cannot be scored: {task.admission.reason}."
                raise InvalidRequest(RequestCode.UNSCORABLE_TASK, message)
            return task
        if not ids:
            raise InvalidRequest(RequestCode.INVALID_ARGUMENT, f"No task here is in the split {split!r}.")
        if seed is None:
            return self.get(secrets.choice(ids))
        return self.get(ids[int(_digest(f"{split}:{seed:x}"), 16) % len(ids)])

    def _suggest(self, task_id: str) -> list[str]:
        """Known ids near a wrong one: those that it is part of ('level1/19', '19_ReLU'), then similar spellings."""
        query = task_id[:_MAX_QUERY_CHARS].strip().removesuffix(".py").strip("/").lower()
        if not query:
            return []
        known = {known.lower(): known for known in self.task_ids}
        starts = [full for low, full in known.items() if low.startswith((f"{query}_", f"{query}/"))]
        parts = [full for low, full in known.items() if query in low]
        bare = {low.split("/")[1]: full for low, full in known.items()}
        close = [known[low] for low in difflib.get_close_matches(query, known, _MAX_SUGGESTIONS)]
        close += [bare[low] for low in difflib.get_close_matches(query, bare, _MAX_SUGGESTIONS)]
        return list(dict.fromkeys(starts + parts + close))[:_MAX_SUGGESTIONS]


def _list_tasks(root: Path) -> dict[str, Path]:
    """Task id -> file. The only way from an id to a path, so an id cannot leave the directory."""
    paths: dict[str, Path] = {}
    for level in _LEVELS:
        folder = root / f"level{level}"
        if not folder.is_dir():
            continue
        for path in folder.iterdir():
            match = _TASK_FILE.fullmatch(path.name)
            if match and path.is_file():
                paths[f"level{level}/{match[1]}"] = path
    if not paths:
        inner = root / "KernelBench"
        hint = f" Did you mean {inner}?" if (inner / "level1").is_dir() else ""
        raise TaskSourceError(f"{root} has no level1/NN_name.py ... level4/NN_name.py files.{hint}")
    return paths


def _check_type(name: str, value: object, expected: type) -> None:
    if value is not None and (not isinstance(value, expected) or isinstance(value, bool)):
        message = f"{name} must be of type {expected.__name__} or null, not {type(value).__name__}."
        raise InvalidRequest(RequestCode.INVALID_ARGUMENT, message)
