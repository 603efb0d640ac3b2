"""Read modules of installed packages as source, and follow their names to where they are defined: nothing is imported.

What the source can't tell, such as a compiled module or a name that is made when it is asked for, is kept apart from
what isn't there.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path

from pytest_rlregress.stack.class_sources import ClassSource

# Whatever makes names by code: what isn't written there may be there.
_DYNAMIC = re.compile(r"^def __getattr__|\bglobals\(\)|sys\.modules\[__name__\]|setattr\(sys\.modules", re.MULTILINE)
#: Classes of other packages that are done with here: they bring no names that a test asks for.
_ROOTS = ("msgspec.Struct", "pydantic.BaseModel", "pydantic_settings.BaseSettings")


@dataclass(frozen=True, eq=False)
class Module:
    """A module that an import would find.

    Attributes:
        name: Its dotted name.
        tree: Its source; None where it has none that this Python can parse.
        text: The same.
        folders: Where its submodules are, if it is a package.
    """

    name: str
    tree: ast.Module | None
    text: str
    folders: tuple[str, ...]

    @property
    def makes_names(self) -> bool:
        """Whether it may have more names than its source shows."""
        return self.tree is None or bool(_DYNAMIC.search(self.text))


@dataclass(frozen=True, eq=False)
class Definition:
    """Where a name gets what it stands for.

    Attributes:
        module: Whose source it is.
        node: The function, class, module or statement; None where the source can't tell.
    """

    module: Module
    node: ast.AST | None


@dataclass
class InstalledModules:
    """Finds modules as an import would, and reads each once."""

    _known: dict[str, Module | None] = field(default_factory=dict)

    def find(self, name: str) -> Module | None:
        """Return a module; None where an import would find none."""
        if name not in self._known:
            spec = self._find_spec(name)
            self._known[name] = _read(name, spec) if spec else None
        return self._known[name]

    def _find_spec(self, name: str) -> ModuleSpec | None:
        """Find a module as the import system does, but for the import of its parents."""
        folders: list[str] | None = None
        if parent := name.rpartition(".")[0]:
            above = self.find(parent)
            if above is None or not above.folders:
                return None
            folders = [*above.folders]
        try:
            for finder in sys.meta_path:
                find_spec = getattr(finder, "find_spec", None)
                if find_spec and (spec := find_spec(name, folders, None)):
                    return spec  # type: ignore[no-any-return]
        except KeyError:  # a folder without __init__.py: Python looks for its parent among what is imported
            places = [Path(folder, name.rpartition(".")[2]) for folder in folders or ()]
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(place) for place in places if place.is_dir()]
            return spec
        return None

    def follow(self, start: Definition, parts: Sequence[str]) -> list[Definition]:
        """Find the definitions that dotted names below one may have; none where it doesn't have them."""
        found = [start]
        for part in parts:
            found = [below for one in found for below in self._find_below(one, part)]
        return found

    def _find_below(self, above: Definition, name: str) -> list[Definition]:
        if isinstance(above.node, ast.Module):
            return self.find_name(above.module, name)
        if isinstance(above.node, ast.ClassDef):
            return self._find_member(above, name)
        if isinstance(above.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return []
        return [Definition(above.module, None)]

    def find_name(self, module: Module, name: str, _seen: frozenset[str] = frozenset()) -> list[Definition]:
        """Find the definitions that a module's name may have: several where a condition chooses."""
        if f"{module.name}:{name}" in _seen:
            return []
        if module.tree is None:
            return [Definition(module, None)]
        seen = _seen | {f"{module.name}:{name}"}
        found: list[Definition] = []
        starred: list[Module] = []
        for node in _list_statements(module.tree.body):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name == name:
                found.append(Definition(module, node))
            elif isinstance(node, ast.ImportFrom):
                imported = [one.name for one in node.names if one.name == "*" or (one.asname or one.name) == name]
                source = self.find(_name_source(module, node)) if imported else None
                if source is not None and imported == ["*"]:
                    starred.append(source)
                elif source is not None:
                    found += [one for origin in imported for one in self.find_name(source, origin, seen)]
            elif isinstance(node, ast.Import):
                found += self._find_imported(node, name)
            elif name in _list_assigned(node):
                value = getattr(node, "value", None)
                renamed = self.find_name(module, value.id, seen) if isinstance(value, ast.Name) else []
                found += renamed or [Definition(module, node)]
        if not found and (below := self.find(f"{module.name}.{name}")):
            found = [Definition(below, below.tree)]
        if not found and module.makes_names:
            return [Definition(module, None)]
        if not found and not name.startswith("_"):
            found = [one for source in starred for one in self.find_name(source, name, seen)]
        return found

    def _find_imported(self, node: ast.Import, name: str) -> list[Definition]:
        tops = [(one.asname and one.name) or one.name.partition(".")[0] for one in node.names if _binds(one) == name]
        return [Definition(one, one.tree) for top in tops if (one := self.find(top))]

    def read_class(self, definition: Definition) -> ClassSource:
        """Read a class with those that it inherits.

        Raises:
            TypeError: It isn't a class.
        """
        return self._read_class(definition, ())

    def _read_class(self, definition: Definition, below: tuple[ast.AST, ...]) -> ClassSource:
        module, node = definition.module, definition.node
        if not isinstance(node, ast.ClassDef) or module.tree is None:
            raise TypeError(f"{module.name}: not a class")
        found = ClassSource(node, module.tree, module.name.partition(".")[0])
        for base in node.bases:
            named = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
            origin = self._name_origin(module, named)
            if origin in _ROOTS:
                found.is_made_of_fields = True
                continue
            if origin.partition(".")[0] in sys.stdlib_module_names or (origin == named and hasattr(builtins, named)):
                continue
            bases = self.follow(Definition(module, module.tree), named.split("."))
            classes = [one for one in bases if isinstance(one.node, ast.ClassDef) and one.node not in (node, *below)]
            if classes:
                found.bases.append(self._read_class(classes[-1], (node, *below)))
            else:
                found.is_partial = True
        return found

    def _name_origin(self, module: Module, dotted: str) -> str:
        """Name a base with the module that it is imported from; as it is where no import has it."""
        first, _, rest = dotted.partition(".")
        for node in _list_statements(module.tree.body if module.tree else ()):
            for one in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
                if _binds(one) == first:
                    name = one.name if one.asname or isinstance(node, ast.ImportFrom) else first
                    source = f"{_name_source(module, node)}." if isinstance(node, ast.ImportFrom) else ""
                    return f"{source}{name}.{rest}".removesuffix(".")
        return dotted

    def _find_member(self, above: Definition, name: str) -> list[Definition]:
        """Find the definitions that a member of a class may have: a method, a field, what a method gives ``self``."""
        source = self.read_class(above)
        lineage = source.lineage()
        for cls in lineage:
            for node in ast.walk(cls.node):
                named = (
                    isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node in cls.node.body
                )
                if named and getattr(node, "name", "") == name:
                    return [Definition(above.module, node)]
                if name in _list_assigned(node) and (node in cls.node.body or f"self.{name}" in ast.unparse(node)):
                    return [Definition(above.module, node)]
        methods = {getattr(node, "name", "") for cls in lineage for node in cls.node.body}
        unsure = any(cls.is_partial for cls in lineage) or "__getattr__" in methods
        return [Definition(above.module, None)] if unsure else []


def _read(name: str, spec: ModuleSpec) -> Module:
    folders = tuple(map(str, spec.submodule_search_locations or ()))
    origin = Path(spec.origin or "")
    if origin.suffix != ".py":
        # A folder without __init__.py has nothing but its submodules.
        return Module(name, ast.Module([], []) if folders and spec.origin is None else None, "", folders)
    try:
        text = origin.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on escapes in others' strings
            return Module(name, ast.parse(text), text, folders)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return Module(name, None, "", folders)


def _list_statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those under a condition or a ``try`` among them."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
            for part in ("body", "orelse", "finalbody"):
                yield from _list_statements(getattr(node, part, ()))
            for handler in getattr(node, "handlers", ()):
                yield from _list_statements(handler.body)


def _list_assigned(node: ast.AST) -> set[str]:
    """Return the names, and the names of attributes, that a statement assigns."""
    if not isinstance(node, (ast.Assign, ast.AnnAssign)):
        return set()
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    inside = [one for target in targets for one in getattr(target, "elts", [target])]
    return {str(getattr(one, "id", getattr(one, "attr", ""))) for one in inside}


def _binds(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _name_source(module: Module, node: ast.ImportFrom) -> str:
    """Name the module that an import takes names from."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    kept = parts[: len(parts) - node.level + bool(module.folders)]
    return ".".join([*kept, *([node.module] if node.module else [])])
