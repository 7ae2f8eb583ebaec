"""The scopes of a submission: which name is bound where, and which expressions belong to which function.

Reads a parsed tree and runs nothing. The walk keeps its own stack, so that hostile nesting costs none of Python's.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from server.static_work import TooComplexError, Work

FunctionLike = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTION_LIKE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
MAX_PATH = 500
"""What is kept of a dotted name: no real one is longer, and hostile ones are repeated."""
_MAX_SCOPES = 200  # inside each other
Binding = str | FunctionLike | ast.ClassDef | ast.expr | ast.arg | None
"""What a name is bound to: an imported dotted name, a definition, an assigned expression, a parameter; None: unknown"""


@dataclass(eq=False)
class Scope:
    kind: str  # "module" | "class" | "function"
    node: ast.AST
    parent: Scope | None
    names: dict[str, list[Binding]] = field(default_factory=lambda: defaultdict(list))
    outside: dict[str, Scope] = field(default_factory=dict)  # names declared global or nonlocal
    depth: int = field(init=False)

    def __post_init__(self) -> None:
        self.depth = self.parent.depth + 1 if self.parent is not None else 1
        if self.depth > _MAX_SCOPES:  # a look-up passes all of them
            raise TooComplexError

    def bind(self, name: str, value: Binding) -> None:
        self.outside.get(name, self).names[name].append(value)

    def find(self, name: str) -> Scope | None:
        """The scope that binds `name`, seen from here. Class scopes are invisible to the functions inside them."""
        scope: Scope | None = self
        while scope is not None:
            if scope is self or scope.kind != "class":
                target = scope.outside.get(name, scope)
                if name in target.names:
                    return target
            scope = scope.parent
        return None


class _Visit(NamedTuple):
    node: ast.AST
    scope: Scope
    owner: FunctionLike | None = None
    handler: bool = False  # inside an except block
    off_gpu: bool = False  # in a branch that is taken only without CUDA

    def into(self, nodes: Iterable[ast.AST | None], scope: Scope | None = None) -> Iterator[_Visit]:
        """Visits of a node's children, by default evaluated where it is evaluated itself."""
        return (self._replace(node=node, scope=scope or self.scope) for node in nodes if node is not None)


class Scopes:
    """A parsed submission. Statements that can never run (`if False`, after a return) are not part of it."""

    def __init__(self, tree: ast.Module, work: Work) -> None:
        self.work = work
        self.top = Scope("module", tree, None)
        self.owned: dict[FunctionLike | None, list[ast.expr | ast.AugAssign]] = defaultdict(list)
        """By the function whose body they are in (None: module level): calls, names, attributes, subscripts, `@`."""
        self.inner_lambdas: dict[FunctionLike | None, list[ast.Lambda]] = defaultdict(list)
        self.functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        self.imports: list[tuple[str, int]] = []
        self.stores: list[tuple[ast.Attribute | ast.Subscript, ast.expr | None]] = []
        self.in_handler: set[ast.AST] = set()
        self.off_gpu: set[ast.AST] = set()
        """Those of `owned` that run only where the tensors are not on a GPU (`if not x.is_cuda`)."""
        self.star_imports: list[str] = []
        self.scope_of: dict[ast.AST, Scope] = {}
        self.class_scope: dict[ast.ClassDef, Scope] = {}
        self.self_of: dict[ast.arg, ast.ClassDef] = {}
        self._walk(tree)

    def _walk(self, tree: ast.Module) -> None:
        stack = [_Visit(node, self.top) for node in reversed(_live(tree.body))]
        while stack:
            self.work.spend()
            visit = stack.pop()
            children = list(self._enter(visit))
            stack.extend(reversed(children))

    def _enter(self, visit: _Visit) -> Iterator[_Visit]:
        """Records one node and yields its children, each with the scope that it is evaluated in."""
        node, scope = visit.node, visit.scope

        def here(*nodes: ast.AST | None) -> Iterator[_Visit]:
            return visit.into(nodes)

        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                arguments = node.args
                yield from here(*arguments.defaults, *arguments.kw_defaults)
                inner = Scope("function", node, scope)
                self._bind_arguments(node, inner)
                if isinstance(node, ast.Lambda):
                    self.inner_lambdas[visit.owner].append(node)
                    body: list[ast.AST] = [node.body]
                else:
                    scope.bind(node.name, node)
                    self.functions.append(node)
                    yield from here(*node.decorator_list)
                    body = [*_live(node.body)]
                yield from visit._replace(owner=node).into(body, inner)
            case ast.ClassDef():
                scope.bind(node.name, node)
                yield from here(*node.decorator_list, *node.bases, *node.keywords)
                inner = self.class_scope[node] = Scope("class", node, scope)
                yield from visit.into(_live(node.body), inner)
            case ast.Import():
                for alias in node.names:
                    self.imports.append((alias.name, node.lineno))
                    name = alias.name if alias.asname else _root(alias)
                    scope.bind(alias.asname or _root(alias), name[:MAX_PATH])
            case ast.ImportFrom():
                base = ("." * node.level + (node.module or ""))[:MAX_PATH]
                for alias in node.names:
                    self.imports.append((f"{base}.{alias.name}", node.lineno))
                    if alias.name == "*":
                        self.star_imports.append(base)
                    else:
                        scope.bind(alias.asname or alias.name, f"{base}.{alias.name}")
            case ast.Global() | ast.Nonlocal():
                self.work.spend(scope.depth * len(node.names))
                for name in node.names:
                    found = self.top if isinstance(node, ast.Global) else scope.parent and scope.parent.find(name)
                    scope.outside[name] = found or self.top
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from here(node.value)
                for target in targets:
                    if isinstance(target, ast.Name):
                        if node.value is not None:
                            scope.bind(target.id, node.value)
                    else:
                        self._store(target, node.value)
                        yield from here(target)
            case ast.NamedExpr():
                scope.bind(node.target.id, node.value)
                yield from here(node.value)
            case ast.AugAssign():
                if isinstance(node.op, ast.MatMult):
                    self._own(node, visit)
                self._store(node.target, None)
                yield from here(node.target, node.value)
            case ast.Delete():
                for target in node.targets:
                    self._store(target, None)
                yield from here(*node.targets)
            case ast.If() | ast.While() | ast.IfExp():
                yield from here(node.test)
                always = bool(node.test.value) if isinstance(node.test, ast.Constant) else None
                on_gpu = _on_gpu(node.test)
                if always is not False:
                    yield from visit._replace(off_gpu=visit.off_gpu or on_gpu is False).into(_branch(node.body))
                if always is not True:
                    yield from visit._replace(off_gpu=visit.off_gpu or on_gpu is True).into(_branch(node.orelse))
            case ast.ExceptHandler():
                if node.name:
                    scope.bind(node.name, None)
                yield from here(node.type)
                yield from visit._replace(handler=True).into(_live(node.body))
            case _:
                self._plain(visit)
                for _, value in ast.iter_fields(node):
                    if isinstance(value, list):
                        yield from here(*(item for item in _live(value) if isinstance(item, ast.AST)))
                    elif isinstance(value, ast.AST):
                        yield from here(value)

    def _plain(self, visit: _Visit) -> None:
        node, scope = visit.node, visit.scope
        match node:
            case ast.Name():
                self.scope_of[node] = scope
                if isinstance(node.ctx, ast.Load):
                    self._own(node, visit)
                else:
                    scope.bind(node.id, None)
            case ast.Call() | ast.Attribute() | ast.Subscript():
                self._own(node, visit)
            case ast.BinOp(op=ast.MatMult()):
                self._own(node, visit)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                scope.bind(name, None)
            case _:
                pass

    def _own(self, node: ast.expr | ast.AugAssign, visit: _Visit) -> None:
        self.owned[visit.owner].append(node)
        if visit.handler:
            self.in_handler.add(node)
        if visit.off_gpu:
            self.off_gpu.add(node)

    def _store(self, target: ast.expr, value: ast.expr | None) -> None:
        pending = [(target, value)]
        while pending:
            target, value = pending.pop()
            if isinstance(target, ast.Attribute | ast.Subscript):
                self.stores.append((target, value))
            elif isinstance(target, ast.Tuple | ast.List):
                pending += [(element, None) for element in target.elts]
            elif isinstance(target, ast.Starred):
                pending.append((target.value, None))

    def _bind_arguments(self, node: FunctionLike, inner: Scope) -> None:
        arguments = node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        for argument in positional + arguments.kwonlyargs:
            inner.bind(argument.arg, argument)
        for argument in (arguments.vararg, arguments.kwarg):
            if argument is not None:
                inner.bind(argument.arg, None)
        outer = inner.parent
        if positional and outer is not None and isinstance(outer.node, ast.ClassDef):
            static = not isinstance(node, ast.Lambda) and any(
                isinstance(decorator, ast.Name) and decorator.id == "staticmethod" for decorator in node.decorator_list
            )
            if not static:
                self.self_of[positional[0]] = outer.node


def _root(alias: ast.alias) -> str:
    return alias.name.split(".")[0]


def _live(items: list) -> list:
    """A list of statements up to the first that always leaves it (any other list stays as it is)."""
    for index, item in enumerate(items):
        if isinstance(item, ast.Return | ast.Raise | ast.Break | ast.Continue):
            return items[: index + 1]
    return items


def _branch(branch: list[ast.stmt] | ast.expr) -> list:
    return _live(branch) if isinstance(branch, list) else [branch]


def _on_gpu(test: ast.expr) -> bool | None:
    """What a test for CUDA says on a GPU; None for any other test."""
    negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    match test.operand if isinstance(test, ast.UnaryOp) and negated else test:
        case (
            ast.Attribute(attr="is_cuda")
            | ast.Call(func=ast.Attribute(attr="is_available", value=ast.Attribute(attr="cuda") | ast.Name(id="cuda")))
        ):
            return not negated
        case ast.Compare(
            left=ast.Attribute(attr="type", value=ast.Attribute(attr="device")),
            ops=[ast.Eq() | ast.NotEq() as operator],
            comparators=[ast.Constant(value="cuda" | "cpu" as kind)],
        ):
            return (isinstance(operator, ast.Eq) == (kind == "cuda")) != negated
        case _:
            return None
