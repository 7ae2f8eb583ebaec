"""What benchmarks/soak.py submits: right, wrong and harmful kernels, each with a nonce. Reads examples/, kernels/."""

from __future__ import annotations

import itertools
import json
import random
import re
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sustained_mix import CPP_RELU, KERNELS, RELU, ROOT, unique

TRITON_TASKS = (RELU, "level1/23_Softmax", "level1/40_LayerNorm")
# How long the process of a submission whose client vanishes would live.
FOREVER_S = 100_000
_SIGNATURE = re.compile(r"(    def forward\(self, (\w+).*?\) -> torch\.Tensor:\n)", re.DOTALL)
_marks = itertools.count()
_IMPORTS = "import os\nimport signal\nimport time\n\nCALLS = []\n"


@dataclass(frozen=True)
class Kind:
    """A sort of submission: how many of a deck are of it, what its reward may be where it is judged, and the lines that
    go into its forward (with {x} for the argument and {nonce})."""

    share: int
    reward: str
    """'positive', 'zero' or 'none': its client does not wait for one."""
    forward: str = ""
    evaluators: tuple[str, ...] = ("cpu", "gpu", "mock")


_RUNS = ("cpu", "gpu")
KINDS: dict[str, Kind] = {
    "good": Kind(12, "positive"),
    "good C++": Kind(3, "positive", evaluators=_RUNS),
    "wrong": Kind(4, "zero"),
    "syntax error": Kind(2, "zero"),
    "raises": Kind(2, "zero", "if {x}.numel() > 0:\n    raise ValueError('{nonce}')"),
    "exits": Kind(1, "zero", "os._exit(3)"),
    "kills itself": Kind(1, "zero", "os.kill(os.getpid(), signal.SIGKILL)"),
    "segmentation fault": Kind(1, "zero", "os.kill(os.getpid(), signal.SIGSEGV)"),
    "takes all memory": Kind(1, "zero", "while True:\n    CALLS.append(torch.empty(1 << 28, device={x}.device))"),
    # In the second call, for which there is no time to compile.
    "endless loop": Kind(1, "zero", "CALLS.append(0)\nwhile len(CALLS) > 1:\n    pass"),
    "illegal access": Kind(2, "zero", evaluators=("gpu",)),
    "endless kernel": Kind(1, "zero", evaluators=("gpu",)),
    # The client vanishes once its submission runs, which its file mode mask shows in /proc.
    "client vanishes": Kind(2, "none", f"os.umask({{mark}})\ntime.sleep({FOREVER_S})"),
    "client freezes": Kind(1, "none"),
}


@dataclass(frozen=True)
class Submission:
    """One submission; `nonce` is in its source, and what shows in the feedback of some kinds. `mark` is the file mode
    mask of the process of one whose client vanishes."""

    kind: str
    nonce: str
    task_id: str
    language: str
    code: str
    mark: int


@cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _wrong_relu() -> str:
    patch = json.loads(_read(KERNELS / "wrong.json"))[RELU]
    return _read(KERNELS / f"{RELU}.py").replace(patch["find"], patch["replace"])


def make(kind: str, task_id: str, evaluator: str) -> Submission:
    """A submission of this kind like no other. The kinds that are about no task take one of their own."""
    nonce = uuid.uuid4().hex
    language, mark = "triton", 0o700 + next(_marks) % 64  # nobody else has such a one
    lines = KINDS[kind].forward.format(x="{x}", nonce=nonce, mark=mark)
    if kind == "good C++":
        task_id, language = RELU, "cuda"
        code = CPP_RELU if evaluator == "cpu" else _read(KERNELS / "cuda" / f"{RELU}.py")
    elif kind in ("illegal access", "endless kernel"):
        task_id = RELU
        code = _read(KERNELS / "extra" / ("illegal_access.py" if kind == "illegal access" else "never_returns.py"))
    elif kind == "wrong":
        task_id, code = RELU, _wrong_relu()
    else:
        code = _read(ROOT / "examples" / f"{task_id}.py")
    if kind == "syntax error":
        code += f"\n)  # {nonce}\n"
    if lines:
        code = code.replace("import torch\n", _IMPORTS + "import torch\n", 1)
        block = "".join(f"        {line}\n" for line in lines.splitlines())
        code, count = _SIGNATURE.subn(lambda found: found[1] + block.replace("{x}", found[2]), code, count=1)
        assert count == 1, task_id
    return Submission(kind, nonce, task_id, language, f"# {nonce}\n{unique(code)}", mark)


class Deck:
    """Deals submissions in a random order in which every kind comes up once in each deck."""

    def __init__(self, evaluator: str, seed: int) -> None:
        self._evaluator = evaluator
        self._random = random.Random(seed)
        self._cards: list[str] = []
        self.kinds = [name for name, kind in KINDS.items() if evaluator in kind.evaluators]

    def draw(self, without: Collection[str], first: list[str]) -> Submission:
        """The next submission that is not of a kind of `without`; one of a kind of `first`, whose turn that was."""
        if first and first[0] not in without:
            return make(first.pop(0), self._random.choice(TRITON_TASKS), self._evaluator)
        if all(card in without for card in self._cards):
            whole = [name for name in self.kinds for _ in range(KINDS[name].share)]
            self._random.shuffle(whole)
            self._cards = whole + self._cards
        position = next(index for index in range(len(self._cards) - 1, -1, -1) if self._cards[index] not in without)
        return make(self._cards.pop(position), self._random.choice(TRITON_TASKS), self._evaluator)
