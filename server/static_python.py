"""The rules that work on the Python side of a submission.

Reads a parsed tree through `static_names.Module`; runs nothing. Rules about `forward` apply to every function that can
be reached by name from ModelNew.forward, never to Triton kernels, `__init__` or module-level code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from server.static_names import Instance, Module
from server.static_rules import (
    COMPUTE,
    PATCH_ROOTS,
    Rule,
    Violation,
    banned,
    canonical,
    clip,
    nn_compute,
    torch_compute,
)
from server.static_submission import Submission, is_jit

_EXTENSION = "torch.utils.cpp_extension"


# ---------------------------------------------------------------- the model


def check_model(submission: Submission) -> Iterator[Violation]:
    """ModelNew is a class of the file with a forward of its own."""
    model = submission.model
    if model is None:
        yield Violation(Rule.MISSING_MODEL, None, "define class ModelNew(nn.Module) at the top level of the file")
    elif submission.forward_class is None:
        if "builtins.Model" not in submission.module.external_bases(model):  # said by check_names
            message = "give ModelNew a forward method with the same arguments as Model.forward"
            yield Violation(Rule.MISSING_FORWARD, model.lineno, message)
    elif submission.forward_class.name == "Model":
        yield Violation(Rule.REFERENCE, model.lineno, "ModelNew inherits forward from Model; write its own forward")


# ---------------------------------------------------------------- Triton


def check_triton(submission: Submission) -> Iterator[Violation]:
    """A @triton.jit kernel exists and is launched, and nothing is compiled as C++."""
    module = submission.module
    for path, line in module.imports:
        if path.startswith(_EXTENSION) or path == "torch.utils.cpp_extension":
            yield _wrong_language(line)
    for _, node in submission.everything():
        if isinstance(node, ast.Attribute) and module.path(node).startswith(_EXTENSION):
            yield _wrong_language(node.lineno)
    by_hand = any(
        isinstance(node, ast.Call) and is_jit(module.follow(node.func)) for _, node in submission.everything()
    )
    if not submission.kernels and not by_hand:
        yield Violation(
            Rule.NO_KERNEL, None, "decorate at least one kernel with @triton.jit and launch it from forward"
        )
    elif not _launched(submission):
        line = min((kernel.lineno for kernel in submission.kernels), default=None)
        yield Violation(Rule.NOT_LAUNCHED, line, "launch the kernel: kernel[grid](...), on the path that forward takes")


def _wrong_language(line: int) -> Violation:
    return Violation(Rule.WRONG_LANGUAGE, line, "the language is triton: remove torch.utils.cpp_extension")


def _launched(submission: Submission) -> bool:
    """A launch of a kernel, or of something unknown while a kernel is passed around by name."""
    module = submission.module
    maybe = referenced = False
    for owner, node in submission.everything():
        if owner in submission.kernels:
            continue
        if isinstance(node, ast.Call):
            for used in (node.func, *node.args):
                answer = _launch(submission, used)
                if answer:
                    return True
                maybe = maybe or (answer is None and used is node.func)
        elif isinstance(node, ast.Name | ast.Attribute):
            referenced = referenced or submission.is_kernel(module.follow(node))
    return maybe and referenced


def _launch(submission: Submission, used: ast.expr) -> bool | None:
    """Whether calling `used` launches a kernel. None: it may, what is subscripted is not known."""
    module = submission.module
    target = used if isinstance(used, ast.Subscript | ast.Attribute) else module.follow(used)
    if isinstance(target, ast.Subscript):
        base = module.follow(target.value)
    elif isinstance(target, ast.Attribute) and target.attr == "run":
        base = module.follow(target.value)
    else:
        return False
    if submission.is_kernel(base):
        return True
    certain = str | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | ast.Constant
    if isinstance(base, certain) or isinstance(base, ast.List | ast.Tuple | ast.Dict | ast.ListComp | ast.DictComp):
        return False
    if isinstance(base, ast.Call) and (module.path(base.func) + ".").startswith(("torch.", "builtins.")):
        return False
    return None


# ---------------------------------------------------------------- forward


def check_forward(submission: Submission) -> Iterator[Violation]:
    """No PyTorch computation in what forward reaches."""
    for function in submission.reached:
        for node in submission.live(function):
            what = _computation(submission, node)
            if what is None:
                continue
            if node in submission.module.in_handler:
                message = f"{what} is a PyTorch fallback; remove the try and let the kernel's error show"
                yield Violation(Rule.FALLBACK, node.lineno, message)
            else:
                message = f"{what} computes with PyTorch on forward's path; do it in your kernel"
                yield Violation(Rule.TORCH_COMPUTE, node.lineno, message)


def _computation(submission: Submission, node: ast.expr | ast.AugAssign) -> str | None:
    module = submission.module
    if isinstance(node, ast.BinOp | ast.AugAssign):
        return "the @ operator"
    if not isinstance(node, ast.Call):
        return None
    called = module.follow(node.func)
    if isinstance(called, str):
        if (torch_compute(called) and not _on_scalar(module, node)) or _is_nn_forward(called):
            return clip(called)
    if isinstance(called, Instance):
        layer = module.inherited_layer(called.cls)
        if layer and module.members(called.cls, "forward")[0] is None:
            return clip(f"{called.cls.name}, a {layer},")
    if isinstance(called, ast.Call) and (layer := _layer(submission, called)):
        return layer
    if isinstance(node.func, ast.Attribute):
        owner = module.follow(node.func.value)
        if isinstance(owner, ast.Call) and node.func.attr in ("forward", "__call__"):
            return _layer(submission, owner)
        if canonical(node.func.attr) in COMPUTE and submission.tensors.certain(node.func.value):
            return clip(f"Tensor.{node.func.attr}")
    for argument in node.args:
        if isinstance(argument, ast.Name | ast.Attribute) and torch_compute(path := module.path(argument)):
            return clip(path)
    return None


def _is_nn_forward(path: str) -> bool:
    owner, _, method = path.rpartition(".")
    return method in ("forward", "__call__") and nn_compute(owner)


def _on_scalar(module: Module, call: ast.Call) -> bool:
    """torch.sqrt(torch.tensor(64.0)): host arithmetic on a constant, which the dispatch guard can judge better."""
    first = call.args[0] if call.args else None
    return isinstance(first, ast.Call) and module.path(first.func) == "torch.tensor"


def _layer(submission: Submission, call: ast.Call) -> str | None:
    """The torch.nn layer that computes when this module object is called; looks into containers."""
    if call not in submission.layers:
        submission.layers[call] = _find_layer(submission.module, call)
    return submission.layers[call]


def _find_layer(module: Module, call: ast.Call) -> str | None:
    pending: list[ast.expr] = [call]
    for left in range(100, 0, -1):
        module.work.spend()
        if not pending:
            return None
        item = pending.pop()
        if isinstance(item, ast.List | ast.Tuple):
            pending += item.elts[-left:]
        elif isinstance(item, ast.Starred):
            pending.append(item.value)
        elif isinstance(item, ast.Call):
            path = module.path(item.func)
            if nn_compute(path):
                return clip(path)
            if path in ("torch.nn.Sequential", "torch.nn.ModuleList"):
                pending += item.args[-left:]
    return None


# ---------------------------------------------------------------- the whole file


def check_names(submission: Submission) -> Iterator[Violation]:
    """Names and imports that no kernel needs, anywhere in the file."""
    module = submission.module
    for path, line in module.imports:
        if found := banned(path):
            yield Violation(found[0], line, f"{clip(path)} {found[1]}")
        elif path.endswith(".Model"):
            yield Violation(
                Rule.REFERENCE, line, "do not import the reference Model; write ModelNew with your own kernel"
            )
    for _, node in submission.everything():
        if isinstance(node, ast.Name | ast.Attribute):
            path = module.path(node)
            if found := banned(path):
                yield Violation(found[0], node.lineno, f"{clip(path)} {found[1]}")
            elif path == "builtins.Model":
                yield Violation(Rule.REFERENCE, node.lineno, "Model is the reference; ModelNew must not use it")
        elif isinstance(node, ast.Call):
            yield from _check_call(module, node)


def _check_call(module: Module, call: ast.Call) -> Iterator[Violation]:
    called = module.path(call.func)
    if called in ("builtins.eval", "builtins.exec", "builtins.compile"):
        message = f"{called.rpartition('.')[2]} runs code that is not in the file as code; write it out"
        yield Violation(Rule.DYNAMIC_CODE, call.lineno, message)
    elif called in ("builtins.__import__", "importlib.import_module"):
        imported = module.follow(call)
        if not isinstance(imported, str):
            yield Violation(
                Rule.DYNAMIC_CODE, call.lineno, "import modules by a constant name, with an import statement"
            )
        elif found := banned(imported):
            yield Violation(found[0], call.lineno, f"{clip(imported)} {found[1]}")
    elif called in ("builtins.setattr", "builtins.delattr") and call.args:
        yield from _patched(module.path(call.args[0]) + ".", call.lineno)


def check_stores(submission: Submission) -> Iterator[Violation]:
    """Assignments into modules that are not the submission's."""
    module = submission.module
    for target, _ in module.stores:
        base = module.path(target.value)
        if isinstance(target, ast.Attribute):
            yield from _patched(f"{base}.{target.attr}", target.lineno)
        elif base == "sys.modules" or "__dict__" in base or base == "builtins.__builtins__":
            yield Violation(Rule.MONKEYPATCH, target.lineno, f"writing to {clip(base)} replaces code that is not yours")


def _patched(path: str, line: int) -> Iterator[Violation]:
    if path.startswith("torch.backends."):
        message = "torch.backends settings are the evaluator's; remove the write and choose the precision in the kernel"
        yield Violation(Rule.GLOBAL_FLAGS, line, message)
    elif path.split(".")[0] in PATCH_ROOTS and "." in path:
        yield Violation(Rule.MONKEYPATCH, line, f"writing to {clip(path.rstrip('.'))} replaces code that is not yours")
