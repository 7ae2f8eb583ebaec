"""Task sources, splits, small variants and how a reset picks. Needs neither torch nor KernelBench."""

from __future__ import annotations

import ast
import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from server import tasks
from server.errors import InvalidRequest, RequestCode, TaskSourceError, UnknownSplitError, UnknownTaskError, echo
from server.settings import Settings
from server.tasks import BUILTIN_DIR, SPLITS_FILE, TaskSource, apply_overrides, freeze_splits, load_small_overrides

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A task directory of somebody's own, with files that are no tasks among them."""
    for name in ("level1/19_ReLU.py", "level1/101_Mine.py", "level2/7_Other.py", "level4/1_gpt2_bs1-x.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {name}\n")
    for name in ("level1/notes.txt", "level1/__init__.py", "level1/no_number.py", "secret.py"):
        (tmp_path / name).write_text("# not a task\n")
    (tmp_path / "level1" / "5_folder.py").mkdir()
    return tmp_path


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the variable nor the image's directory."""
    monkeypatch.delenv("KERNELBENCH_DIR", raising=False)
    monkeypatch.setattr(tasks, "IMAGE_KERNELBENCH_DIR", tmp_path / "absent")


# ---------------------------------------------------------------- which directory


def test_listing_takes_task_files_only(folder: Path) -> None:
    assert TaskSource(folder).task_ids == ("level1/19_ReLU", "level1/101_Mine", "level2/7_Other", "level4/1_gpt2_bs1-x")


def test_variable_wins_over_the_image(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "IMAGE_KERNELBENCH_DIR", BUILTIN_DIR)
    monkeypatch.setenv("KERNELBENCH_DIR", str(folder))
    assert TaskSource.open(Settings(), "gpu").root == folder


@pytest.mark.usefixtures("no_environment")
def test_image_directory_wins_over_the_builtin_tasks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "IMAGE_KERNELBENCH_DIR", folder)
    assert TaskSource.open(Settings(), "gpu").root == folder


@pytest.mark.usefixtures("no_environment")
@pytest.mark.parametrize(("evaluator", "small"), [("gpu", False), ("mock", False), ("cpu", True)])
def test_builtin_tasks_are_small_for_cpu_only(evaluator: str, small: bool) -> None:
    source = TaskSource.open(Settings(), evaluator)
    task_id = "level2/76_Gemm_Add_ReLU"
    text = source.get(task_id).source
    assert source.root == BUILTIN_DIR
    assert (text != (BUILTIN_DIR / f"{task_id}.py").read_text()) is small
    assert ("\nbatch_size = 32\n" in text) is small


def test_cpu_has_the_small_builtin_tasks_also_where_the_image_s_directory_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "IMAGE_KERNELBENCH_DIR", folder)
    source = TaskSource.open(Settings(), "cpu")
    assert source.root == BUILTIN_DIR
    assert source.get("level2/76_Gemm_Add_ReLU").small


def test_own_tasks_keep_their_sizes_for_cpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELBENCH_DIR", str(folder))
    task = TaskSource.open(Settings(), "cpu").get("level1/19_ReLU")
    assert (task.source, task.small) == ("# level1/19_ReLU.py\n", False)


def test_a_variant_is_small_only_where_it_differs(folder: Path) -> None:
    (folder / "level1/19_ReLU.py").write_text("batch_size = 4\n")
    for value, small in ((4, False), (2, True)):
        assert TaskSource(folder, {"level1/19_ReLU": {"batch_size": value}}).get("level1/19_ReLU").small is small


def test_directory_without_tasks_is_refused_with_a_hint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = folder / "checkout"
    (checkout / "KernelBench" / "level1").mkdir(parents=True)
    monkeypatch.setenv("KERNELBENCH_DIR", str(checkout))
    with pytest.raises(TaskSourceError, match="Did you mean .*checkout/KernelBench"):
        TaskSource.open(Settings(), "gpu")
    monkeypatch.setenv("KERNELBENCH_DIR", str(folder / "nowhere"))
    with pytest.raises(TaskSourceError, match="nowhere has no level1"):
        TaskSource.open(Settings(), "gpu")


# ---------------------------------------------------------------- one task


def test_task_carries_source_level_split_and_hash(folder: Path) -> None:
    task = TaskSource(folder).get("level4/1_gpt2_bs1-x")
    assert (task.source, task.level, task.split) == ("# level4/1_gpt2_bs1-x.py\n", 4, None)
    assert task.hash == hashlib.sha256(task.source.encode()).hexdigest()


def test_files_are_read_lazily_and_once(folder: Path) -> None:
    source = TaskSource(folder)
    (folder / "level1/19_ReLU.py").write_text("# changed before the first read\n")
    first = source.get("level1/19_ReLU")
    (folder / "level1/19_ReLU.py").write_text("# changed after it\n")
    assert first.source == "# changed before the first read\n"
    assert source.get("level1/19_ReLU") is first


def test_unreadable_task_is_the_sources_fault(folder: Path) -> None:
    source = TaskSource(folder)
    (folder / "level1/19_ReLU.py").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(TaskSourceError, match="level1/19_ReLU cannot be read"):
        source.get("level1/19_ReLU")


@pytest.mark.parametrize(
    "task_id",
    ["../secret", "level1/../secret", "level1/../level1/19_ReLU", "/etc/passwd", "level1/19_ReLU.py", "level1/5_folder"]
    + ["level1", "", "level1/19_ReLU\x00", "LEVEL1/19_relu", "level1/notes", "level1/__init__"],
)
def test_only_listed_ids_are_accepted(folder: Path, task_id: str) -> None:
    with pytest.raises(UnknownTaskError) as caught:
        TaskSource(folder).get(task_id)
    assert caught.value.code == "unknown_task"
    assert "There are 4 tasks" in caught.value.message


@pytest.mark.parametrize(
    "query", ["level1/19", "19_ReLU", "level1/19_ReLU.py", "level1/19_relu", "level1/19_RelU_", "ReLU"]
)
def test_unknown_task_suggests_the_near_one(folder: Path, query: str) -> None:
    with pytest.raises(UnknownTaskError) as caught:
        TaskSource(folder).get(query)
    assert caught.value.suggestions[0] == "level1/19_ReLU"
    assert "Did you mean level1/19_ReLU" in caught.value.message


def test_error_text_is_bounded() -> None:
    source = TaskSource.builtin()
    for value in ("x" * 1_000_000, "\u0000" * 1_000_000, "level"):
        with pytest.raises(UnknownTaskError) as caught:
            source.get(value)
        assert len(caught.value.message) < 600
    with pytest.raises(UnknownSplitError) as split:
        source.pick(split="y" * 1_000_000)
    assert len(split.value.message) < 300


# ---------------------------------------------------------------- splits


def test_frozen_lists_follow_the_rule() -> None:
    lists = json.loads(SPLITS_FILE.read_text())
    assert freeze_splits(lists["train"] + lists["eval"]) == lists
    per_level = {split: Counter(task_id.split("/")[0] for task_id in ids) for split, ids in lists.items()}
    assert per_level["eval"] == {"level1": 20, "level2": 20, "level3": 10}
    assert per_level["train"] == {"level1": 80, "level2": 80, "level3": 40}


def test_every_builtin_level_has_both_splits_and_frozen_ids() -> None:
    source = TaskSource.builtin()
    found = {(task_id.split("/")[0], tasks.split_of(task_id)) for task_id in source.task_ids}
    assert found == {(f"level{level}", split) for level in (1, 2, 3) for split in tasks.SPLITS}
    lists = json.loads(SPLITS_FILE.read_text())
    assert set(source.task_ids) <= {*lists["train"], *lists["eval"]}


def test_ids_outside_the_lists_follow_their_own_rule(folder: Path) -> None:
    mine = [f"level2/{number}_Mine" for number in range(200, 300)]
    held = [task_id for task_id in mine if tasks.split_of(task_id) == "eval"]
    assert held == [task_id for task_id in mine if int(hashlib.sha256(task_id.encode()).hexdigest(), 16) % 5 == 0]
    assert 5 < len(held) < 40
    assert tasks.split_of("level4/1_gpt2_bs1-x") is None
    source = TaskSource(folder)
    assert "level4/1_gpt2_bs1-x" not in source.ids("train") + source.ids("eval")


# ---------------------------------------------------------------- pick


@pytest.fixture(scope="module")
def kernelbench(tmp_path_factory: pytest.TempPathFactory) -> TaskSource:
    """A directory with KernelBench's 250 file names and no content."""
    root = tmp_path_factory.mktemp("kernelbench")
    lists = json.loads(SPLITS_FILE.read_text())
    for task_id in lists["train"] + lists["eval"]:
        path = root / f"{task_id}.py"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return TaskSource(root)


@pytest.mark.parametrize(
    ("seed", "split", "task_id"),
    [
        (0, "train", "level1/3_Batched_matrix_multiplication"),
        (1, "train", "level1/33_BatchNorm"),
        (2**70, "train", "level1/71_conv_transposed_2D__asymmetric_input__square_kernel"),
        (0, "eval", "level1/100_HingeLoss"),
        (-7, "eval", "level2/80_Gemm_Max_Subtract_GELU"),
    ],
)
def test_seed_decides_the_task_on_every_machine(kernelbench: TaskSource, seed: int, split: str, task_id: str) -> None:
    """These literals are a contract: a change here changes what every seed means to every trainer."""
    task = kernelbench.pick(seed=seed, split=split)
    assert (task.task_id, task.split) == (task_id, split)


def test_seeds_reach_every_task_of_a_split() -> None:
    source = TaskSource.builtin()
    assert {source.pick(seed=seed, split="train").task_id for seed in range(600)} == set(source.ids("train"))


def test_split_defaults_to_train() -> None:
    source = TaskSource.builtin()
    assert source.pick(seed=3) == source.pick(seed=3, split="train")
    assert source.pick().split == "train"


def test_task_id_wins_over_seed_and_split() -> None:
    task = TaskSource.builtin().pick(seed=1, split="train", task_id="level2/59_Matmul_Swish_Scaling")
    assert (task.task_id, task.split) == ("level2/59_Matmul_Swish_Scaling", "eval")


def test_without_a_seed_the_task_is_drawn_from_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    source = TaskSource.builtin()
    monkeypatch.setattr(tasks.secrets, "choice", lambda ids: ids[-1])
    assert source.pick(split="eval").task_id == source.ids("eval")[-1]


def test_unknown_split_lists_the_valid_ones() -> None:
    with pytest.raises(UnknownSplitError, match="'test'. Valid splits: train, eval.") as caught:
        TaskSource.builtin().pick(split="test", task_id="level1/19_ReLU")
    assert caught.value.code is RequestCode.UNKNOWN_SPLIT


def test_arguments_of_a_wrong_type_are_typed_errors() -> None:
    source = TaskSource.builtin()
    wrong: list[dict[str, object]] = [{"seed": "1"}, {"seed": True}, {"seed": 1.5}, {"split": 3}, {"task_id": ["x"]}]
    for arguments in wrong:
        with pytest.raises(InvalidRequest) as caught:
            source.pick(**arguments)  # type: ignore[arg-type]
        assert caught.value.code == "invalid_argument"
        assert next(iter(arguments)) in caught.value.message


def test_empty_split_is_a_typed_error(folder: Path) -> None:
    source = TaskSource(folder)
    assert source.ids("eval") == ()
    with pytest.raises(InvalidRequest, match="No task here is in the split 'eval'"):
        source.pick(seed=0, split="eval")


def test_error_codes_are_checked() -> None:
    assert InvalidRequest("unknown_language", "m").code is RequestCode.UNKNOWN_LANGUAGE
    with pytest.raises(ValueError, match="nonsense"):
        InvalidRequest("nonsense", "m")
    assert echo([1]) == "a value of type list"


# ---------------------------------------------------------------- small variants


def test_overrides_replace_exact_spans() -> None:
    source = (
        '"""é batch_size = 1"""\nbatch_size = 2 * 64  # how many\ndim = (\n    1\n    + 2\n)\n'
        'x = "é"; scale = 1.0\n\n\ndef f():\n    batch_size = 3\n'
    )
    changed = apply_overrides(source, {"scale": 0.5, "batch_size": 8, "dim": -1})
    expected = source.replace("2 * 64", "8").replace("1\n    + 2", "-1").replace("scale = 1.0", "scale = 0.5")
    assert changed == expected
    assert apply_overrides(source, {}) == source


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("a = 1\n", "b"),
        ("a = 1\na = 2\n", "a"),
        ("a = b = 1\n", "a"),
        ("a, b = 1, 2\n", "a"),
        ("def f():\n    a = 1\n", "a"),
        ("if True:\n    a = 1\n", "a"),
    ],
)
def test_override_of_anything_but_one_plain_constant_fails(source: str, name: str) -> None:
    with pytest.raises(TaskSourceError, match=f"'{name}' is assigned"):
        apply_overrides(source, {name: 8})


def test_override_values_are_numbers() -> None:
    for value in ("__import__('os')", True, [1]):
        with pytest.raises(TaskSourceError, match="not a number"):
            apply_overrides("a = 1\n", {"a": value})  # type: ignore[dict-item]


def test_every_builtin_task_has_a_small_variant_and_a_solution() -> None:
    full, small = TaskSource.builtin(), TaskSource.builtin(small=True)
    assert load_small_overrides(BUILTIN_DIR).keys() == set(full.task_ids)
    for task_id in full.task_ids:
        nodes = ast.parse(full.get(task_id).source).body
        defined = {node.name for node in nodes if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
        assert {"Model", "get_inputs", "get_init_inputs"} <= defined, task_id
        assert small.get(task_id).hash != full.get(task_id).hash, task_id
        ast.parse(small.get(task_id).source)
        assert (EXAMPLES / f"{task_id}.py").is_file(), task_id


def test_missing_or_repeated_small_variants_are_reported(folder: Path) -> None:
    with pytest.raises(TaskSourceError, match="level1/19_ReLU has no small variant"):
        TaskSource(folder, small={}).get("level1/19_ReLU")
    (folder / "small_a.json").write_text('{"level1/19_ReLU": {}}')
    (folder / "small_b.json").write_text('{"level1/19_ReLU": {}}')
    with pytest.raises(TaskSourceError, match="small_b.json repeats level1/19_ReLU"):
        load_small_overrides(folder)
    (folder / "small_b.json").write_text("[")
    with pytest.raises(TaskSourceError, match="small_b.json"):
        load_small_overrides(folder)
