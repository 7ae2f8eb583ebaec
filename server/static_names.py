"""What the names in a submission mean: scopes, import aliases, simple assignments, attributes of `self`.

Reads a parsed tree and runs nothing. An answer is given only where it is certain: a name that is bound in two ways, or
by something that cannot be followed, means None. Walks use explicit stacks and every recursion has a limit, so hostile
nesting costs neither the interpreter's stack nor quadratic time.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from server.static_text import Text, read_text

FunctionLike = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTION_LIKE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DEPTH = 40
_MAX_BINDINGS = 8


@dataclass(frozen=True)
class Instance:
    """An object of a class that the submission defines (`self`, or the result of calling the class)."""

    cls: ast.ClassDef


Value = str | FunctionLike | ast.ClassDef | Instance | ast.expr | ast.arg | None
"""A dotted name from outside the file; a definition; an instance; an expression with no further meaning; unknown."""


@dataclass(eq=False)
class Scope:
    kind: str  # "module" | "class" | "function"
    node: ast.AST
    parent: Scope | None
    names: dict[str, list[Value]] = field(default_factory=lambda: defaultdict(list))
    outside: dict[str, Scope] = field(default_factory=dict)  # names declared global or nonlocal

    def bind(self, name: str, value: Value) -> None:
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


@dataclass(eq=False)
class _Visit:
    node: ast.AST
    scope: Scope
    owner: FunctionLike | None
    handler: bool  # inside an except block


class Module:
    """A parsed submission. Statements that can never run (`if False`, after a return) are not part of it."""

    def __init__(self, tree: ast.Module, code: str) -> None:
        self._source_lines = code.split("\n")
        self.top = Scope("module", tree, None)
        self.owned: dict[FunctionLike | None, list[ast.expr | ast.AugAssign]] = defaultdict(list)
        """By the function whose body they are in (None: module level): calls, names, attributes, subscripts, `@`."""
        self.inner_lambdas: dict[FunctionLike | None, list[ast.Lambda]] = defaultdict(list)
        self.functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        self.imports: list[tuple[str, int]] = []
        self.stores: list[tuple[ast.Attribute | ast.Subscript, ast.expr | None]] = []
        self.in_handler: set[ast.AST] = set()
        self._star_imports: list[str] = []
        self._scope_of: dict[ast.AST, Scope] = {}
        self._class_scope: dict[ast.ClassDef, Scope] = {}
        self._self_of: dict[ast.arg, ast.ClassDef] = {}
        self._attributes: dict[tuple[ast.ClassDef, str], list[Value]] = defaultdict(list)
        self._followed: dict[ast.AST, Value] = {}
        self._named: dict[tuple[Scope, str], Value] = {}
        self._walk(tree)
        for target, value in self.stores:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                owner = self.follow(target.value)
                if isinstance(owner, Instance):
                    self._attributes[owner.cls, target.attr].append(value)

    # ------------------------------------------------------------ building

    def _walk(self, tree: ast.Module) -> None:
        stack = [_Visit(node, self.top, None, False) for node in reversed(_live(tree.body))]
        while stack:
            visit = stack.pop()
            children = list(self._enter(visit))
            stack.extend(reversed(children))

    def _enter(self, visit: _Visit) -> Iterator[_Visit]:
        """Records one node and yields its children, each with the scope that it is evaluated in."""
        node, scope = visit.node, visit.scope

        def here(*nodes: ast.AST | None) -> Iterator[_Visit]:
            return (_Visit(child, scope, visit.owner, visit.handler) for child in nodes if child is not None)

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
                yield from (_Visit(child, inner, node, visit.handler) for child in body)
            case ast.ClassDef():
                scope.bind(node.name, node)
                yield from here(*node.decorator_list, *node.bases, *node.keywords)
                inner = self._class_scope[node] = Scope("class", node, scope)
                yield from (_Visit(child, inner, visit.owner, visit.handler) for child in _live(node.body))
            case ast.Import():
                for alias in node.names:
                    self.imports.append((alias.name, node.lineno))
                    scope.bind(alias.asname or alias.name.split(".")[0], alias.name if alias.asname else _root(alias))
            case ast.ImportFrom():
                base = "." * node.level + (node.module or "")
                for alias in node.names:
                    self.imports.append((f"{base}.{alias.name}", node.lineno))
                    if alias.name == "*":
                        self._star_imports.append(base)
                    else:
                        scope.bind(alias.asname or alias.name, f"{base}.{alias.name}")
            case ast.Global() | ast.Nonlocal():
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
            case ast.If() | ast.While():
                yield from here(node.test)
                always = bool(node.test.value) if isinstance(node.test, ast.Constant) else None
                yield from here(*(_live(node.body) if always is not False else []))
                yield from here(*(_live(node.orelse) if always is not True or isinstance(node, ast.While) else []))
            case ast.ExceptHandler():
                if node.name:
                    scope.bind(node.name, None)
                yield from here(node.type)
                yield from (_Visit(child, scope, visit.owner, True) for child in _live(node.body))
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
                self._scope_of[node] = scope
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
                self._self_of[positional[0]] = outer.node

    # ------------------------------------------------------------ asking

    def follow(self, node: ast.expr, depth: int = 0) -> Value:
        """What an expression certainly stands for; the expression itself when it is known but means nothing more."""
        if node in self._followed:
            return self._followed[node]
        if depth > _DEPTH:
            return None
        self._followed[node] = None  # what refers to itself stays unknown
        value = self._followed[node] = self._follow(node, depth + 1)
        return value

    def _follow(self, node: ast.expr, depth: int) -> Value:
        match node:
            case ast.Name():
                return self._follow_name(node, depth)
            case ast.Attribute():
                return self._follow_attribute(node.value, node.attr, depth) or node
            case ast.Call(func=ast.Name(id="super")):
                return node
            case ast.Call():
                return self._follow_call(node, depth)
            case ast.NamedExpr():
                return self.follow(node.value, depth)
            case _:
                return node

    def bindings(self, node: ast.Name) -> list[Value]:
        """Everything that the name is bound to in the scope where it is found."""
        scope = self._scope_of[node].find(node.id) if node in self._scope_of else None
        return scope.names[node.id] if scope else []

    def _follow_name(self, node: ast.Name, depth: int) -> Value:
        scope = self._scope_of[node].find(node.id) if node in self._scope_of else None
        if scope is None:
            if hasattr(builtins, node.id) or node.id in ("__builtins__", "Model"):
                return f"builtins.{node.id}"
            return f"{self._star_imports[-1]}.{node.id}" if self._star_imports else None
        key = (scope, node.id)
        if key not in self._named:
            self._named[key] = None
            self._named[key] = self._agreed(scope.names[node.id], depth)
        return self._named[key]

    def _agreed(self, bound: list[Value], depth: int) -> Value:
        if len(bound) > _MAX_BINDINGS:
            return None
        values = [self._meaning(value, depth) for value in bound]
        return values[0] if values and all(value == values[0] for value in values) else None

    def _meaning(self, value: Value, depth: int) -> Value:
        if isinstance(value, ast.Lambda):
            return value
        if isinstance(value, ast.expr):
            return self.follow(value, depth)
        if isinstance(value, ast.arg) and value in self._self_of:
            return Instance(self._self_of[value])
        return value

    def _follow_attribute(self, owner: ast.expr, attribute: str, depth: int) -> Value:
        base = self.follow(owner, depth)
        if isinstance(base, str):
            return f"{base}.{attribute}" if len(base) < 500 else None
        if isinstance(base, Instance):
            base = base.cls
        if isinstance(base, ast.ClassDef):
            found, values = self.members(base, attribute, depth)
            if found is None and attribute == "apply":  # torch.autograd.Function
                found, values = self.members(base, "forward", depth)
            return self._agreed(values, depth)
        if isinstance(base, ast.Call) and isinstance(base.func, ast.Name) and base.func.id == "super":
            cls = self.enclosing_class(base.func)
            for parent in self.bases(cls, depth) if cls else []:
                if isinstance(parent, str):
                    return f"{parent}.{attribute}"
                found, values = self.members(parent, attribute, depth)
                if found is not None:
                    return self._agreed(values, depth)
        return None

    def _follow_call(self, node: ast.Call, depth: int) -> Value:
        called = self.follow(node.func, depth)
        if isinstance(called, ast.ClassDef):
            return Instance(called)
        if not isinstance(called, str) or not node.args:
            return node
        if called in ("builtins.__import__", "importlib.import_module") and (name := self.text(node.args[0])):
            return name.text.split(".")[0] if called == "builtins.__import__" else name.text
        if called == "builtins.getattr" and len(node.args) > 1 and (name := self.text(node.args[1])):
            return self._follow_attribute(node.args[0], name.text, depth) or node
        if called in ("functools.partial", "builtins.staticmethod", "builtins.classmethod"):
            return self.follow(node.args[0], depth)
        return node

    def enclosing_class(self, node: ast.Name) -> ast.ClassDef | None:
        """The class in whose body or method a name stands."""
        scope = self._scope_of.get(node)
        while scope is not None and not isinstance(scope.node, ast.ClassDef):
            scope = scope.parent
        return scope.node if scope is not None and isinstance(scope.node, ast.ClassDef) else None

    def bases(self, cls: ast.ClassDef, depth: int = 0) -> list[str | ast.ClassDef]:
        """The base classes that are known: definitions of this file, or dotted names."""
        known = (self.follow(base, depth) for base in cls.bases)
        return [base for base in known if isinstance(base, str | ast.ClassDef)]

    def members(self, cls: ast.ClassDef, name: str, depth: int = 0) -> tuple[ast.ClassDef | None, list[Value]]:
        """The nearest class of this file, `cls` or above it, that defines `name`, and what it is bound to there."""
        pending, seen = [cls], set()
        while pending and len(seen) < _DEPTH:
            cls = pending.pop()
            if cls in seen or cls not in self._class_scope:
                continue
            seen.add(cls)
            bound = [*self._class_scope[cls].names.get(name, []), *self._attributes.get((cls, name), [])]
            if bound:
                return cls, bound
            pending += reversed([base for base in self.bases(cls, depth) if isinstance(base, ast.ClassDef)])
        return None, []

    def external_bases(self, cls: ast.ClassDef) -> list[str]:
        """Dotted names of the classes outside the file that `cls` inherits from, directly or not."""
        pending, seen, outside = [cls], set(), []
        while pending and len(seen) < _DEPTH:
            cls = pending.pop()
            if cls not in seen:
                seen.add(cls)
                for base in self.bases(cls):
                    (outside if isinstance(base, str) else pending).append(base)  # type: ignore[arg-type]
        return outside

    def text(self, node: ast.expr, max_pieces: int = 20) -> Text | None:
        """The string an expression certainly evaluates to (up to the space around it and its indentation)."""
        return read_text(node, self.follow, self._source_lines, max_pieces)


def _root(alias: ast.alias) -> str:
    return alias.name.split(".")[0]


def _live(items: list) -> list:
    """A list of statements up to the first that always leaves it (any other list stays as it is)."""
    for index, item in enumerate(items):
        if isinstance(item, ast.Return | ast.Raise | ast.Break | ast.Continue):
            return items[: index + 1]
    return items
