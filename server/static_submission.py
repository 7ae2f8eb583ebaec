"""What a submission consists of: ModelNew, its Triton kernels, and the functions that forward reaches by name.

Built on `static_names.Module`; runs nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from server.static_names import Instance, Module, Value
from server.static_scopes import FUNCTION_LIKE, FunctionLike
from server.static_tensors import Tensors


class Submission:
    """A submission's names, its kernels and the functions that forward reaches."""

    def __init__(self, module: Module, cpu: bool = False) -> None:
        self.module = module
        self._ignored = set() if cpu else module.off_gpu
        self.kernels = {
            function
            for function in module.functions
            if any(self._mentions_jit(decorator) for decorator in function.decorator_list)
        }
        bound = module.top.names.get("ModelNew", [])
        model = bound[-1] if bound else None
        model = module.follow(model) if isinstance(model, ast.expr) else model
        self.model = model if isinstance(model, ast.ClassDef) else None
        self.forward_class: ast.ClassDef | None = None
        self.forwards: list[Value] = []
        if self.model is not None:
            self.forward_class, self.forwards = module.members(self.model, "forward")
        self._kernel_calls: dict[ast.Call, bool] = {}
        self.layers: dict[ast.Call, str | None] = {}
        self.tensors = Tensors(module, set(self._forward_arguments()))
        self._custom_ops = self._find_custom_ops()
        self.reached = self._reach()

    def _mentions_jit(self, node: ast.expr) -> bool:
        """Whether a decorator or a call involves triton.jit, directly or through functions and names of the file."""
        pending: list[tuple[ast.AST, int]] = [(node, 0)]
        for left in range(60, 0, -1):
            self.module.work.spend()
            if not pending:
                return False
            item, hops = pending.pop()
            if isinstance(item, ast.Name | ast.Attribute):
                value = self.module.follow(item)
                if isinstance(value, str):
                    if is_jit(value):
                        return True
                    continue
                if isinstance(value, ast.AST) and value is not item and hops < 3:
                    pending.append((value, hops + 1))
            children = _last_children(item, left)
            self.module.work.spend(len(children))
            pending += [(child, hops) for child in children]
        return False

    def _forward_arguments(self) -> Iterator[ast.arg]:
        """What forward is called with."""
        for forward in self.forwards:
            if isinstance(forward, ast.FunctionDef):
                arguments = forward.args
                yield from [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs][1:]

    def is_kernel(self, value: Value) -> bool:
        """Whether a value is a Triton kernel: a decorated function, or triton.jit(...) applied by hand."""
        if isinstance(value, FUNCTION_LIKE):
            return value in self.kernels
        if not isinstance(value, ast.Call):
            return False
        if value not in self._kernel_calls:
            first = _first_nodes(value, 200)
            self.module.work.spend(len(first))
            names = (node for node in first if isinstance(node, ast.Name | ast.Attribute))
            meanings = [self.module.follow(node) for node in names]
            self._kernel_calls[value] = any(
                is_jit(item) or (isinstance(item, FUNCTION_LIKE) and item in self.kernels) for item in meanings
            )
        return self._kernel_calls[value]

    def _find_custom_ops(self) -> dict[str, FunctionLike]:
        """torch.ops names of functions registered with @torch.library.custom_op("ns::name", ...) and its kin."""
        found: dict[str, FunctionLike] = {}
        for function in self.module.functions:
            for decorator in function.decorator_list:
                if isinstance(decorator, ast.Call) and decorator.args:
                    path, name = self.module.follow(decorator.func), self.module.text(decorator.args[0])
                    if isinstance(path, str) and path.startswith("torch.library.") and name and "::" in name.text:
                        if not path.endswith("fake"):
                            found["torch.ops." + name.text.replace("::", ".")] = function
        return found

    def _reach(self) -> list[FunctionLike]:
        """ModelNew.forward and every function of the file that it reaches by name, Triton kernels left out."""
        pending: list[Value] = [*self.forwards]
        if self.model is not None:
            pending += self.module.members(self.model, "__call__")[1]
        reached: dict[FunctionLike, None] = {}
        constructed: set[ast.ClassDef] = set()
        called_instances: set[ast.ClassDef] = set()
        while pending:
            self.module.work.spend()
            value = pending.pop()
            if isinstance(value, ast.expr) and not isinstance(value, ast.Lambda):
                value = self.module.follow(value)
            if not isinstance(value, FUNCTION_LIKE) or value in reached or value in self.kernels:
                continue
            reached[value] = None
            pending += self.module.inner_lambdas[value]
            for node in self.live(value):
                if isinstance(node, ast.Name | ast.Attribute):
                    pending.append(self._function(self.module.follow(node)))
                elif isinstance(node, ast.Call):
                    called = self.module.follow(node.func)
                    if isinstance(called, ast.ClassDef) and called not in constructed:
                        constructed.add(called)
                        pending += self.module.members(called, "__init__")[1]
                    elif isinstance(called, Instance) and called.cls not in called_instances:
                        called_instances.add(called.cls)
                        pending += self.module.members(called.cls, "forward")[1]
                        pending += self.module.members(called.cls, "__call__")[1]
        return list(reached)

    def _function(self, value: Value) -> Value:
        if isinstance(value, str):
            return self._custom_ops.get(value) or self._custom_ops.get(value.rpartition(".")[0])
        return value

    def live(self, function: FunctionLike) -> Iterator[ast.expr | ast.AugAssign]:
        """What a function's body evaluates, without branches that this evaluator's device never takes."""
        return (node for node in self.module.owned[function] if node not in self._ignored)

    def everything(self) -> Iterator[tuple[FunctionLike | None, ast.expr | ast.AugAssign]]:
        for owner, nodes in list(self.module.owned.items()):
            self.module.work.spend(len(nodes))
            for node in nodes:
                yield owner, node


def is_jit(value: Value) -> bool:
    """triton.jit by any of its names, and the jit of Triton's other dialects."""
    return isinstance(value, str) and value.startswith("triton.") and value.endswith(".jit")


def _last_children(node: ast.AST, limit: int) -> list[ast.AST]:
    """The last children of a node in order, at most `limit`."""
    found: list[ast.AST] = []  # the last first
    for name in reversed(node._fields):
        value = getattr(node, name, None)
        items = value[-limit:] if isinstance(value, list) else [value]
        found += [item for item in reversed(items) if isinstance(item, ast.AST)]
        if len(found) >= limit:
            break
    return found[:limit][::-1]


def _first_nodes(node: ast.AST, limit: int) -> list[ast.AST]:
    """The first nodes that ast.walk visits, at most `limit`."""
    found = [node]
    for item in found:  # grows
        for child in ast.iter_child_nodes(item):
            if len(found) == limit:
                return found
            found.append(child)
    return found
