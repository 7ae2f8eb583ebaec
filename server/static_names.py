"""What the names in a submission mean: import aliases, simple assignments, attributes of `self`, text constants.

Reads a parsed tree and runs nothing. An answer is given only where it is certain: a name that is bound in two ways, or
by something that cannot be followed, means None. Every recursion has a limit, every answer is kept and every step is
counted, so hostile code costs neither the interpreter's stack nor quadratic time.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from server.static_rules import nn_compute
from server.static_scopes import MAX_PATH, Binding, FunctionLike, Scope, Scopes
from server.static_text import Text, read_text
from server.static_work import Work

_DEPTH = 40
_MAX_BINDINGS = 8


@dataclass(frozen=True)
class Instance:
    """An object of a class that the submission defines (`self`, or the result of calling the class)."""

    cls: ast.ClassDef


Value = str | FunctionLike | ast.ClassDef | Instance | ast.expr | ast.arg | None
"""A dotted name from outside the file; a definition; an instance; an expression with no further meaning; unknown."""


class Module(Scopes):
    """A parsed submission that can be asked what its names mean."""

    def __init__(self, tree: ast.Module, code: str, work: Work) -> None:
        super().__init__(tree, work)
        self._source_lines = code.split("\n")
        self._attributes: dict[tuple[ast.ClassDef, str], list[Value]] = defaultdict(list)
        self._followed: dict[ast.AST, Value] = {}
        self._named: dict[tuple[Scope, str], Value] = {}
        self._found: dict[tuple[Scope, str], Scope | None] = {}
        self._bases: dict[ast.ClassDef, list[str | ast.ClassDef]] = {}
        self._parents: dict[ast.ClassDef, list[ast.ClassDef]] = {}
        self._members: dict[tuple[ast.ClassDef, str], tuple[ast.ClassDef | None, list[Value]]] = {}
        self._own_layer: dict[ast.ClassDef, str | None] = {}
        self._layer: dict[ast.ClassDef, str | None] = {}
        self._complete = False  # whether all attributes are known
        for target, value in self.stores:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                owner = self.follow(target.value)
                if isinstance(owner, Instance):
                    self._attributes[owner.cls, target.attr].append(value)
        self._complete = True

    def follow(self, node: ast.expr, depth: int = 0) -> Value:
        """What an expression certainly stands for; the expression itself when it is known but means nothing more."""
        if node in self._followed:
            return self._followed[node]
        if depth > _DEPTH:
            return None
        self.work.spend()
        self._followed[node] = None  # what refers to itself stays unknown
        value = self._follow(node, depth + 1)
        value = self._followed[node] = value[:MAX_PATH] if isinstance(value, str) else value
        return value

    def path(self, node: ast.expr) -> str:
        """The dotted name an expression stands for, or ""."""
        value = self.follow(node)
        return value if isinstance(value, str) else ""

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

    def bindings(self, node: ast.Name) -> list[Binding]:
        """Everything that the name is bound to in the scope where it is found."""
        scope = self._scope(node)
        return scope.names[node.id] if scope else []

    def _scope(self, node: ast.Name) -> Scope | None:
        """The scope that binds a name."""
        if node not in self.scope_of:
            return None
        key = (self.scope_of[node], node.id)
        if key not in self._found:
            self.work.spend(key[0].depth)
            self._found[key] = key[0].find(node.id)
        return self._found[key]

    def _follow_name(self, node: ast.Name, depth: int) -> Value:
        scope = self._scope(node)
        if scope is None:
            if hasattr(builtins, node.id) or node.id in ("__builtins__", "Model"):
                return f"builtins.{node.id}"
            return f"{self.star_imports[-1]}.{node.id}" if self.star_imports else None
        key = (scope, node.id)
        if key not in self._named:
            self._named[key] = None
            self._named[key] = self._agreed(scope.names[node.id], depth)
        return self._named[key]

    def _agreed(self, bound: Sequence[Value], depth: int) -> Value:
        if len(bound) > _MAX_BINDINGS:
            return None
        values = [self._meaning(value, depth) for value in bound]
        return values[0] if values and all(value == values[0] for value in values) else None

    def _meaning(self, value: Value, depth: int) -> Value:
        if isinstance(value, ast.Lambda):
            return value
        if isinstance(value, ast.expr):
            return self.follow(value, depth)
        if isinstance(value, ast.arg) and value in self.self_of:
            return Instance(self.self_of[value])
        return value

    def _follow_attribute(self, owner: ast.expr, attribute: str, depth: int) -> Value:
        base = self.follow(owner, depth)
        if isinstance(base, str):
            return f"{base}.{attribute}" if len(base) < MAX_PATH else None
        if isinstance(base, Instance):
            base = base.cls
        if isinstance(base, ast.ClassDef):
            found, values = self.members(base, attribute, depth)
            if found is None and attribute == "apply":  # torch.autograd.Function
                found, values = self.members(base, "forward", depth)
            return self._agreed(values, depth)
        if isinstance(base, ast.Call) and isinstance(base.func, ast.Name) and base.func.id == "super":
            cls = self.enclosing_class(base.func)
            for parent in self.bases(cls, depth)[:_DEPTH] if cls else []:
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
        scope = self.scope_of.get(node)
        self.work.spend(scope.depth if scope is not None else 1)
        while scope is not None and not isinstance(scope.node, ast.ClassDef):
            scope = scope.parent
        return scope.node if scope is not None and isinstance(scope.node, ast.ClassDef) else None

    def bases(self, cls: ast.ClassDef, depth: int = 0) -> list[str | ast.ClassDef]:
        """The base classes that are known, each once: definitions of this file, or dotted names."""
        if cls not in self._bases and depth <= _DEPTH:
            self._bases[cls], self._parents[cls] = [], []  # what inherits from itself stays unknown
            self.work.spend(len(cls.bases))
            known = dict.fromkeys(self.follow(base, depth) for base in cls.bases)
            self._bases[cls] = [base for base in known if isinstance(base, str | ast.ClassDef)]
            inside = (base for base in self._bases[cls] if isinstance(base, ast.ClassDef))
            self._parents[cls] = list(islice(inside, _DEPTH))
        return self._bases.get(cls, [])

    def _ancestors(self, cls: ast.ClassDef, depth: int = 0) -> Iterator[ast.ClassDef]:
        """`cls` and the classes of this file above it, nearest first, as many as are looked at."""
        pending, seen = [cls], set()
        while pending and len(seen) < _DEPTH:
            self.work.spend()
            cls = pending.pop()
            if cls in seen or cls not in self.class_scope:
                continue
            seen.add(cls)
            yield cls
            self.bases(cls, depth)
            pending += reversed(self._parents.get(cls, []))

    def members(self, cls: ast.ClassDef, name: str, depth: int = 0) -> tuple[ast.ClassDef | None, list[Value]]:
        """The nearest class of this file, `cls` or above it, that defines `name`, and what it is bound to there."""
        if (cls, name) in self._members:
            return self._members[cls, name]
        found: tuple[ast.ClassDef | None, list[Value]] = None, []
        for above in self._ancestors(cls, depth):
            bound = chain(self.class_scope[above].names.get(name, ()), self._attributes.get((above, name), ()))
            values: list[Value] = list(bound if self._complete else islice(bound, _MAX_BINDINGS + 1))
            self.work.spend(len(values))
            if values:
                found = above, values
                break
        if self._complete:
            self._members[cls, name] = found
        return found

    def external_bases(self, cls: ast.ClassDef) -> Iterator[str]:
        """Dotted names of the classes outside the file that `cls` inherits from, directly or not."""
        return (base for above in self._ancestors(cls) for base in self.bases(above) if isinstance(base, str))

    def inherited_layer(self, cls: ast.ClassDef) -> str | None:
        """The first torch.nn layer among `external_bases`."""
        if cls not in self._layer:
            layers = (self._layer_among_bases(above) for above in self._ancestors(cls))
            self._layer[cls] = next((layer for layer in layers if layer), None)
        return self._layer[cls]

    def _layer_among_bases(self, cls: ast.ClassDef) -> str | None:
        if cls not in self._own_layer:
            outside = (base for base in self.bases(cls) if isinstance(base, str))
            self._own_layer[cls] = next((base for base in outside if nn_compute(base)), None)
        return self._own_layer[cls]

    def text(self, node: ast.expr, max_pieces: int = 20, max_size: int = 1_000) -> Text | None:
        """The string an expression certainly evaluates to (up to the space around it and its indentation)."""
        return read_text(node, self.follow, self._source_lines, self.work, max_pieces, max_size)
