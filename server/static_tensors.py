"""Which expressions of a submission are certainly tensors: forward's arguments, allocations, and views of those.

Reads a parsed tree through `static_names.Module`; runs nothing.
"""

from __future__ import annotations

import ast

from server.static_names import Module
from server.static_rules import TENSOR_ALLOCATIONS, TENSOR_VIEWS
from server.static_scopes import Binding

_MAX_VIEWS = 50
_MAX_BINDINGS = 8


class Tensors:
    """Answers that are kept, so that all of them together cost no more than the bindings there are."""

    def __init__(self, module: Module, arguments: set[ast.arg]) -> None:
        self._module = module
        self._arguments = arguments
        self._known: dict[int, bool] = {}  # by the id of a list of bindings, which lives as long as the module

    def certain(self, node: ast.expr) -> bool:
        """Whether an expression is certainly a tensor."""
        origin = self._origin(node)
        if isinstance(origin, bool):
            return origin
        if id(origin) not in self._known:
            self._solve(origin)
        return self._known[id(origin)]

    def _solve(self, first: list[Binding]) -> None:
        """Settles a name and all it is made of: tensors are what no binding proves otherwise, loops included."""
        used_by: dict[int, list[int]] = {id(first): []}
        pending, wrong = [first], list[int]()
        while pending:
            bound = pending.pop()
            for value in bound:
                origin = self._origin(value)
                if isinstance(origin, list):
                    origin_is_tensor = self._known.get(id(origin), True)
                    if id(origin) not in self._known:
                        if id(origin) not in used_by:
                            used_by[id(origin)] = []
                            pending.append(origin)
                        used_by[id(origin)].append(id(bound))
                else:
                    origin_is_tensor = origin
                if not origin_is_tensor:
                    wrong.append(id(bound))
        self._known.update(dict.fromkeys(used_by, True))
        while wrong:
            key = wrong.pop()
            if self._known[key]:
                self._known[key] = False
                wrong += used_by[key]

    def _origin(self, value: Binding) -> bool | list[Binding]:
        """Whether a value is a tensor, or the bindings of the name that decides it."""
        for _ in range(_MAX_VIEWS):
            self._module.work.spend()
            match value:
                case ast.arg():
                    return value in self._arguments
                case ast.Call(func=ast.Attribute(attr=attr, value=owner)):
                    if self._module.path(value.func) in TENSOR_ALLOCATIONS:
                        return True
                    if attr not in TENSOR_VIEWS:
                        return False
                    value = owner
                case ast.Attribute(attr="T" | "mT" | "data", value=owner):
                    value = owner
                case ast.Name():
                    bound = self._module.bindings(value)
                    return bound if 0 < len(bound) <= _MAX_BINDINGS else False
                case _:
                    return False
        return False
