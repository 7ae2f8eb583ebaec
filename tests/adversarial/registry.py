"""The table of attacks: submissions that would be paid if one defence were missing, and what must become of each.

Data only; imports nothing heavy. Each file of `attacks/` is the exact text of one submission; its first sentence says
how it works.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

ATTACKS_DIR = Path(__file__).parent / "attacks"

Evaluator = Literal["cpu", "gpu"]
Must = Literal["rejected", "not_paid_more", "within_tolerance"]


@dataclass(frozen=True)
class Attack:
    """One submission.

    Attributes:
        id: the start of its file's name, which is unique.
        row: the row of the catalogue of known reward hacks that it is an example of; "own" for one that is not there.
        defence: what stops it, in a phrase.
        must: "rejected" when its answers are wrong or not its own, or when it breaks in: the reward is 0.
            "not_paid_more" when its answers are right and only its time is forged: it is paid no more than the honest
            kernel of the same task.
            "within_tolerance" when it forges as much as the tolerance of the judge's clock lets pass, and no more.
        on: the evaluators on which the attack has a meaning.
        static: the static checks alone reject it. They are switched off when the defence is tested.
        times: how often it is submitted in a row: 2 for what one submission leaves for the next.
        needs: it stands only where the sandbox has one of these features.
        without: the text of the trick, by whose removal the submission becomes the honest kernel it is compared with;
            without one, that is the repository's own kernel for the task.
        open: why it is not stopped yet; the table expects it to get through on the evaluators of `open_on`.
    """

    id: str
    row: str
    task_id: str
    defence: str
    must: Must = "rejected"
    language: Literal["triton", "cuda"] = "triton"
    on: tuple[Evaluator, ...] = ("cpu", "gpu")
    static: bool = False
    times: int = 1
    needs: tuple[str, ...] = ()
    without: str = ""
    open: str = ""
    open_on: tuple[Evaluator, ...] = ("cpu", "gpu")

    @cached_property
    def path(self) -> Path:
        """The submission's file."""
        (path,) = ATTACKS_DIR.glob(f"{self.id}_*.py")
        return path

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem

    @cached_property
    def code(self) -> str:
        """The text that is submitted."""
        return self.path.read_text(encoding="utf-8")

    @property
    def mechanism(self) -> str:
        """How it works, in a sentence."""
        return ast.get_docstring(ast.parse(self.code)) or ""

    def honest_twin(self) -> str:
        """The honest kernel that an attack on the clock is compared with: its text, "" for the repository's own."""
        if not self.without:
            return ""
        assert self.without in self.code
        return self.code.replace(self.without, "")

    def open_reason(self, evaluator: Evaluator) -> str:
        """Why it is expected to get through there, "" where it is stopped."""
        return self.open if evaluator in self.open_on else ""


def _attack(id: str, row: str, task_id: str, defence: str, **more: object) -> Attack:
    return Attack(id, row, task_id, defence, **more)  # type: ignore[arg-type]


SOFTMAX = "level1/23_Softmax"
RELU = "level1/19_ReLU"
NORM = "level1/40_LayerNorm"
MATMUL = "level1/1_Square_matrix_multiplication_"
LOSS = "level1/95_CrossEntropyLoss"
FROBENIUS = "level1/37_FrobeniusNorm_"
LINEAR = "level2/76_Gemm_Add_ReLU"
CUMSUM = "level1/89_cumsum"
CONV = "level1/50_conv_standard_2D__square_input__square_kernel"

_FRESH = "new input values in every call, each answer verified"
_POISON = "poisoned outputs, each answer verified"
_PROCESS = "reference and expected outputs exist in the judge alone"
_VALUES = "element-wise comparison in the judge"
_WEIGHTS = "perturbed weights"
_GUARD = "dispatch guard"
_GHOST = "a run without the submission's kernels must be wrong"
_CLOCK = "the judge's clock"
_FRAMES = "bounded, typed frames and secret call numbers"
_SNAPSHOT = "the answer is copied before the clock stops"
_LAYOUT = "layouts are checked by the judge"
_OUTCOMES = "an allow-list of outcomes"
_USER = "another user, who may touch no other process"
_LEFT = "private directories, namespaces and the end of all processes"
_WITHDRAWN = "neither PyTorch's computations nor NVIDIA's libraries are in a submission's process"
_FOR_GOOD = "nothing is left that could give the operators back"
_FUNCTIONS = "functions that compute without the dispatcher are overwritten"
_FILES = "PyTorch's libraries and kernels cannot be read again"

GPU: tuple[Evaluator, ...] = ("gpu",)
CPU: tuple[Evaluator, ...] = ("cpu",)
PRIVATE = ("mount", "landlock")

ATTACKS: tuple[Attack, ...] = (
    # -------------------------------------------------- replay, memory, prediction
    _attack("001", "1", SOFTMAX, _FRESH),
    _attack("002", "2", SOFTMAX, _FRESH),
    _attack("003", "own", SOFTMAX, _FRESH),
    _attack("004", "4", RELU, _FRESH, language="cuda", on=GPU),
    _attack("005", "5", SOFTMAX, "seeds from the operating system, one input at a time"),
    _attack("006", "6", SOFTMAX, "seeds from the operating system"),
    _attack("007", "7", SOFTMAX, "seeds of inputs and of weights are unrelated"),
    _attack("008", "8", LOSS, "inputs whose answer varies"),
    _attack("009", "9", SOFTMAX, _FRESH, on=GPU),
    _attack("010", "10", SOFTMAX, "the judge's own copy of the inputs", must="not_paid_more"),
    _attack("011", "11", SOFTMAX, _POISON),
    _attack("012", "own", SOFTMAX, _POISON),
    _attack("013", "13", SOFTMAX, _PROCESS, static=True),
    _attack("014", "14", SOFTMAX, _PROCESS, static=True),
    _attack("015", "15", SOFTMAX, _PROCESS),
    _attack("017", "17", RELU, "the judge's own copy of the inputs"),
    _attack("018", "18", LINEAR, _PROCESS, static=True),
    _attack("019", "own", LINEAR, "the judge's own copy of the weights", static=True),
    # -------------------------------------------------- somebody else does the work
    _attack("020", "20", SOFTMAX, _PROCESS),
    _attack("021", "21", SOFTMAX, _GUARD, static=True),
    _attack("022", "22", SOFTMAX, _GUARD, static=True),
    _attack("023", "own", SOFTMAX, "the guard remembers its first complaint"),
    _attack("024", "27", SOFTMAX, _GUARD, static=True),
    _attack("025", "26", SOFTMAX, _GUARD, static=True),
    _attack("026", "24", SOFTMAX, _GUARD, static=True),
    _attack("027", "68", SOFTMAX, _GUARD, static=True),
    # -------------------------------------------------- values
    _attack("028", "28", MATMUL, _VALUES),
    _attack("029", "28", SOFTMAX, "right within the task's tolerance, and no faster", must="not_paid_more"),
    _attack("030", "29", MATMUL, "the flags of the candidate's process are its own", static=True),
    _attack("031", "30", FROBENIUS, "an absolute tolerance that follows the output"),
    _attack("032", "30", SOFTMAX, "an absolute tolerance that follows the output"),
    _attack("033", "33", RELU, "signed inputs in the trials"),
    _attack("034", "32", NORM, _WEIGHTS),
    _attack("035", "32", NORM, _WEIGHTS, open="weights cannot be perturbed where names or shapes differ"),
    _attack("036", "own", NORM, _WEIGHTS),
    _attack("037", "own", NORM, _WEIGHTS, static=True, open="the judge believes the names that it is told"),
    _attack("038", "34", LINEAR, _VALUES),
    _attack("039", "39", SOFTMAX, _VALUES),
    _attack("040", "39", SOFTMAX, "the shape must be the reference's"),
    _attack("041", "40", SOFTMAX, "an error must be small: NaN is not"),
    _attack("042", "40", SOFTMAX, "an error must be small: NaN is not"),
    _attack("043", "own", SOFTMAX, "the dtype must be the reference's"),
    _attack("044", "41", SOFTMAX, "bytes are compared, in the judge"),
    _attack("045", "37", SOFTMAX, "no subclasses of tensors"),
    _attack("046", "37", SOFTMAX, _SNAPSHOT, static=True),
    _attack("047", "own", LOSS, "the structure must be the reference's", static=True),
    # -------------------------------------------------- patches of the candidate's own process
    _attack("048", "42", SOFTMAX, _PROCESS, static=True),
    _attack("049", "44", SOFTMAX, _CLOCK, must="not_paid_more", static=True),
    _attack("050", "43", SOFTMAX, _CLOCK, must="not_paid_more", static=True),
    _attack("051", "43", SOFTMAX, _CLOCK, must="not_paid_more", static=True),
    _attack("052", "43", SOFTMAX, _CLOCK, must="not_paid_more", on=GPU, static=True),
    _attack("053", "own", SOFTMAX, _SNAPSHOT, must="not_paid_more", on=GPU, static=True),
    _attack("054", "own", SOFTMAX, _CLOCK, must="not_paid_more", static=True),
    _attack("055", "61", SOFTMAX, _CLOCK, must="not_paid_more", static=True),
    _attack("056", "own", SOFTMAX, _CLOCK, must="not_paid_more", static=True),
    _attack("057", "own", SOFTMAX, _CLOCK, must="not_paid_more", static=True),
    _attack("058", "own", SOFTMAX, "times must be finite", must="not_paid_more", static=True),
    _attack("059", "own", SOFTMAX, _CLOCK, must="not_paid_more", static=True),
    _attack("060", "own", SOFTMAX, _CLOCK, must="not_paid_more", static=True),
    _attack("061", "51", SOFTMAX, _CLOCK, must="not_paid_more", static=True),
    _attack("062", "51", SOFTMAX, _CLOCK, must="not_paid_more", on=GPU, static=True),
    _attack("063", "52", SOFTMAX, _CLOCK, must="not_paid_more", on=GPU, static=True),
    _attack("064", "own", SOFTMAX, _GHOST, static=True),
    _attack("065", "own", SOFTMAX, _GHOST, static=True),
    _attack("066", "own", SOFTMAX, _GHOST, static=True),
    _attack("067", "25", SOFTMAX, _GHOST, static=True),
    _attack("068", "26", MATMUL, _GHOST, static=True),
    _attack("069", "own", SOFTMAX, _GHOST, on=CPU),
    _attack("070", "own", SOFTMAX, _POISON, static=True),
    # -------------------------------------------------- early and late work, phases
    _attack("071", "36", SOFTMAX, _SNAPSHOT, static=True),
    _attack("072", "36", SOFTMAX, _SNAPSHOT, static=True),
    _attack("073", "own", SOFTMAX, _SNAPSHOT, static=True),
    _attack("074", "own", SOFTMAX, _SNAPSHOT, static=True),
    _attack("075", "own", SOFTMAX, "inputs appear inside the clock", must="not_paid_more", static=True),
    _attack("076", "54", SOFTMAX, _FRESH),
    _attack("077", "54", NORM, _FRESH),
    _attack("078", "55", SOFTMAX, "a median over a fixed number of calls", must="not_paid_more"),
    _attack("079", "54", SOFTMAX, "the candidate sees one phase only", must="not_paid_more", static=True),
    _attack("130", "54", RELU, "trials' inputs at random between timed calls"),
    # -------------------------------------------------- the connection to the judge
    _attack("080", "own", SOFTMAX, _FRAMES, static=True),
    _attack("081", "own", SOFTMAX, _FRAMES, static=True),
    _attack("082", "own", SOFTMAX, _FRAMES, static=True),
    _attack("083", "own", SOFTMAX, _POISON, static=True),
    _attack("084", "own", SOFTMAX, _OUTCOMES, static=True),
    _attack("085", "own", SOFTMAX, _OUTCOMES, static=True),
    _attack("086", "own", SOFTMAX, _OUTCOMES, static=True),
    _attack("087", "own", SOFTMAX, _OUTCOMES, static=True),
    _attack("088", "own", SOFTMAX, _LAYOUT, static=True),
    _attack("089", "own", SOFTMAX, _LAYOUT, static=True),
    _attack("090", "own", SOFTMAX, _LAYOUT, static=True),
    _attack("091", "own", SOFTMAX, _POISON, static=True),
    _attack("092", "own", SOFTMAX, _FRAMES, static=True),
    _attack("093", "own", SOFTMAX, _FRAMES, static=True),
    _attack("094", "49", SOFTMAX, _FRAMES, static=True),
    _attack("095", "46", SOFTMAX, _FRAMES, static=True),
    _attack("096", "47", SOFTMAX, "only the judge says that an answer is right", static=True),
    _attack("097", "47", SOFTMAX, "only the judge says that an answer is right"),
    _attack("098", "own", SOFTMAX, _CLOCK, must="not_paid_more", static=True),
    # -------------------------------------------------- containment
    _attack("100", "50", SOFTMAX, _USER, needs=("uid",)),
    _attack("101", "50", SOFTMAX, _USER, needs=("uid",)),
    _attack("102", "50", SOFTMAX, _USER, static=True, needs=("uid",)),
    _attack("103", "50", SOFTMAX, _USER, static=True, needs=("uid",)),
    _attack("104", "own", SOFTMAX, _USER, needs=("uid",)),
    _attack("105", "own", SOFTMAX, _USER, static=True, needs=("uid",)),
    _attack("106", "own", SOFTMAX, "no new privileges"),
    _attack("107", "63", SOFTMAX, "read-only installation", static=True, needs=("uid", "landlock")),
    _attack("108", "67", SOFTMAX, "no network", static=True, needs=("net", "seccomp")),
    _attack("109", "own", SOFTMAX, _PROCESS, static=True),
    # The CUDA driver opens sockets and pipes of its own in every process.
    _attack("110", "own", SOFTMAX, "a closed set of descriptors", on=("cpu",)),
    _attack("111", "64", SOFTMAX, "an environment that is made from nothing"),
    _attack("112", "own", SOFTMAX, "seeds are drawn in the judge"),
    _attack("113", "own", SOFTMAX, "sealed shared memory", static=True, on=CPU),
    _attack("114", "own", SOFTMAX, "sealed shared memory", static=True, on=CPU),
    _attack("115", "4", RELU, _FRESH, language="cuda", on=CPU, static=True),
    _attack("120", "62", SOFTMAX, _LEFT, times=2, needs=PRIVATE),
    _attack("121", "65", SOFTMAX, _LEFT, times=2, static=True),
    _attack("122", "own", SOFTMAX, "no keyrings", times=2, static=True, needs=("seccomp",)),
    _attack("123", "own", SOFTMAX, _LEFT, times=2, static=True, needs=("ipc", "seccomp")),
    _attack("124", "own", SOFTMAX, _LEFT, times=2, static=True, needs=("ipc", "seccomp")),
    _attack("125", "63", SOFTMAX, _LEFT, times=2, needs=PRIVATE),
    _attack("126", "44", SOFTMAX, "each submission is forked from an untouched process", times=2, static=True),
    _attack("127", "own", SOFTMAX, _LEFT, times=2, static=True),
    _attack("131", "own", SOFTMAX, "files in memory of a limited size", needs=("mount",)),
    _attack("132", "own", SOFTMAX, "no system call that wakes the stopped", static=True, needs=("seccomp",)),
    _attack("133", "own", SOFTMAX, _FRAMES, static=True),
    # -------------------------------------------------- the GPU
    _attack("200", "35", SOFTMAX, _CLOCK, must="not_paid_more", on=GPU),
    _attack("201", "own", SOFTMAX, _CLOCK, must="not_paid_more", on=GPU),
    _attack("202", "own", SOFTMAX, _SNAPSHOT, on=GPU, static=True),
    _attack("203", "own", SOFTMAX, "inputs appear late inside the clock", must="not_paid_more", on=GPU, static=True),
    _attack("204", "own", SOFTMAX, "inputs appear late inside the clock", must="not_paid_more", on=GPU, static=True),
    _attack("205", "own", SOFTMAX, "the tolerance of the clock", must="within_tolerance", on=GPU, static=True),
    _attack("206", "own", RELU, "the tolerance of the clock", must="within_tolerance", on=GPU, static=True),
    _attack(
        "207",
        "59",
        LINEAR,
        "a flush of the L2 cache",
        must="not_paid_more",
        on=GPU,
        static=True,
        without="        persist(self.gemm.weight)\n",
    ),
    _attack("208", "58", SOFTMAX, "clocks need root", on=GPU, static=True, needs=("uid",)),
    _attack("209", "73", SOFTMAX, "one visible device", on=GPU, static=True),
    _attack("210", "11", SOFTMAX, "the driver clears memory between processes", on=GPU),
    _attack("211", "15", SOFTMAX, "every slot is an allocation of its own", on=GPU),
    _attack("212", "own", SOFTMAX, "the judge allocates first", on=GPU),
    _attack("213", "9", SOFTMAX, _GHOST, on=GPU, static=True),
    _attack("214", "24", SOFTMAX, _GHOST, on=GPU, static=True),
    _attack("215", "23", MATMUL, _WITHDRAWN, language="cuda", on=GPU, static=True),
    _attack("216", "69", MATMUL, _WITHDRAWN, language="cuda", on=GPU),
    _attack("217", "36", RELU, _SNAPSHOT, language="cuda", on=GPU),
    _attack("218", "54", RELU, _POISON, language="cuda", on=GPU),
    _attack("219", "own", SOFTMAX, _SNAPSHOT, must="not_paid_more", on=GPU, static=True),
    # -------------------------------------------------- library work whose result the submission's kernel needs
    _attack("230", "own", SOFTMAX, _WITHDRAWN, static=True),
    _attack("231", "own", SOFTMAX, _WITHDRAWN, static=True),
    _attack("232", "25", SOFTMAX, _WITHDRAWN, static=True),
    _attack("233", "24", SOFTMAX, _WITHDRAWN, static=True),
    _attack("234", "own", SOFTMAX, _WITHDRAWN, static=True),
    _attack("235", "own", SOFTMAX, _WITHDRAWN, static=True),
    _attack("236", "own", SOFTMAX, _WITHDRAWN, static=True),
    _attack("237", "26", LINEAR, _WITHDRAWN, static=True),
    _attack("238", "own", MATMUL, _WITHDRAWN, static=True),
    _attack("239", "own", RELU, _WITHDRAWN, static=True),
    _attack("240", "own", MATMUL, _WITHDRAWN, static=True),
    _attack("241", "own", MATMUL, _WITHDRAWN, static=True),
    _attack("242", "own", SOFTMAX, _WITHDRAWN, static=True),
    _attack("243", "own", SOFTMAX, _WITHDRAWN, static=True),
    _attack("244", "26", SOFTMAX, _WITHDRAWN, static=True),
    _attack("245", "69", RELU, _WITHDRAWN, language="cuda", on=CPU, static=True),
    _attack("246", "9", SOFTMAX, _WITHDRAWN, on=GPU),
    _attack("247", "23", MATMUL, _WITHDRAWN, language="cuda", on=GPU),
    _attack("248", "23", MATMUL, _WITHDRAWN, language="cuda", on=GPU),
    _attack("249", "23", RELU, "names of C++ functions that only PyTorch has", language="cuda", on=CPU, static=True),
    _attack("260", "own", SOFTMAX, _FOR_GOOD),
    _attack("261", "own", SOFTMAX, _FOR_GOOD),
    _attack("262", "53", CUMSUM, _FUNCTIONS),
    _attack("263", "53", SOFTMAX, _FUNCTIONS),
    _attack("264", "24", SOFTMAX, _FUNCTIONS),
    _attack("265", "24", SOFTMAX, _FILES, needs=PRIVATE),
    _attack("266", "own", SOFTMAX, _FILES, on=CPU, needs=PRIVATE),
    _attack("267", "own", SOFTMAX, _FILES, needs=PRIVATE),
    _attack("268", "own", CONV, _WITHDRAWN, on=CPU),
    _attack("269", "23", RELU, "names of C++ functions that only PyTorch has", language="cuda", on=CPU, static=True),
    _attack("270", "own", SOFTMAX, _GUARD, on=CPU, open="a process can rewrite what it remembers of itself"),
    _attack("271", "53", CUMSUM, _FUNCTIONS),
    _attack("272", "own", SOFTMAX, _FOR_GOOD),
    _attack("273", "23", RELU, "code that can be read", language="cuda", on=CPU, static=True),
    _attack("274", "53", RELU, _FUNCTIONS, on=CPU, open="functions that serve every device are left"),
    _attack("275", "own", MATMUL, _WITHDRAWN, on=CPU),
    _attack("276", "own", MATMUL, _WITHDRAWN, on=CPU),
)
