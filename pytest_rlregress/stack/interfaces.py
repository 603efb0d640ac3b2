"""Interfaces that a test names: whether an installed release has them, read from its source without importing it.

``verl.workers.utils.losses:ppo_loss(data, dp_group)`` is a module, a colon, a name in it, and what the name takes:
parameters of a function, parameters or fields of a class. ``verl.trainer.config.ppo_trainer:trainer.v1(trainer_mode)``
is a file ``ppo_trainer.yaml`` of verl's and keys in it. What the source can't tell counts as there.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_rlregress.stack.class_sources import ClassSource, find_fields
from pytest_rlregress.stack.installed import StackError, component_of, versions
from pytest_rlregress.stack.module_sources import Definition, InstalledModules

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_SPELLING = re.compile(rf"(?P<module>{_DOTTED}):(?P<name>{_DOTTED})(?:\((?P<takes>\w+(?:, ?\w+)*)\))?")
#: Decorators that make a constructor of the fields, and of nothing else: by their last name. vLLM's is ``config``.
_MAKE_OF_FIELDS = ("dataclass", "config", "define", "frozen")


@dataclass(frozen=True)
class Interface:
    """A name of an installed package, with what it takes.

    Attributes:
        module: Whose name it is; or a configuration, by the folder and the name of its file.
        name: It, dotted if it is a class' member or a key.
        takes: Parameters, fields or keys.
        component: The component that has the module.
    """

    module: str
    name: str
    takes: tuple[str, ...]
    component: str


def is_interface(need: object) -> bool:
    """Return whether a need names an interface, and not a component, a part of one or a system."""
    return isinstance(need, str) and ":" in need


def parse_interface(need: str) -> Interface:
    """Parse an interface as ``needs`` takes it.

    Raises:
        StackError: It isn't spelt so, or its module isn't a component's.
    """
    found = _SPELLING.fullmatch(need)
    if found is None:
        raise StackError(
            f"{need!r} isn't an interface. Allowed: a module, a colon and a name, in brackets what it takes, such as "
            "'vllm.lora.request:LoRARequest(load_inplace)'."
        )
    component = component_of(found["module"])
    if component is None:
        raise StackError(f"{need!r}: {found['module']} isn't a module of a component of the stack.")
    takes = tuple(re.findall(r"\w+", found["takes"] or ""))
    return Interface(found["module"], found["name"], takes, component)


@dataclass
class InterfaceReader:
    """Looks interfaces up in what is installed, each once."""

    _modules: InstalledModules = field(default_factory=InstalledModules)
    _found: dict[str, str] = field(default_factory=dict)
    _configurations: dict[Path, Any] = field(default_factory=dict)

    @cached_property
    def _versions(self) -> dict[str, str]:
        return versions()

    def find_missing(self, need: str) -> str:
        """Say what an installed release doesn't have of an interface; "" if it has it, or nobody can tell.

        Raises:
            StackError: As ``parse_interface``.
        """
        if need not in self._found:
            interface = parse_interface(need)
            missing = self._look_up(interface)
            version = self._versions.get(interface.component) if missing else None
            says = f"needs {missing}, which {interface.component} {version} doesn't have"
            self._found[need] = says if version else ""
        return self._found[need]

    def _look_up(self, interface: Interface) -> str:
        """Return what is missing, "" for nothing."""
        module = self._modules.find(interface.module)
        if module is None:
            return self._look_up_key(interface)
        name = f"{interface.module}.{interface.name}"
        found = self._modules.follow(Definition(module, module.tree), interface.name.split("."))
        if not found:
            return name
        lacking = [self._list_lacking(one, interface.takes) for one in found]
        fewest = min(lacking, key=len)
        return f"{name}({', '.join(f'{one}=…' for one in fewest)})" if fewest else ""

    def _list_lacking(self, definition: Definition, takes: tuple[str, ...]) -> list[str]:
        if not takes:
            return []
        if isinstance(definition.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names, takes_others = _read_arguments(definition.node)
        elif isinstance(definition.node, ast.ClassDef):
            names, takes_others = read_constructor(self._modules.read_class(definition))
        else:
            return []
        return [] if takes_others else [one for one in takes if one not in names]

    def _look_up_key(self, interface: Interface) -> str:
        folder, _, stem = interface.module.rpartition(".")
        package = self._modules.find(folder)
        places = [Path(one) for one in package.folders] if package else []
        # As Hydra composes it, where verl has it so too: the file alone doesn't have the keys of its groups.
        names = (f"_generated_{stem}.yaml", f"{stem}.yaml")
        file = next((file for name in names for place in places if (file := place / name).is_file()), None)
        if file is None:
            return interface.module
        above = _find_value(self._read_configuration(file), interface.name.split("."))
        if above is None:
            return f"{interface.name} of {interface.module}"
        lacking = [one for one in interface.takes if isinstance(above, dict) and above and one not in above]
        return f"{', '.join(f'{interface.name}.{one}' for one in lacking)} of {interface.module}" if lacking else ""

    def _read_configuration(self, file: Path) -> Any:
        if file not in self._configurations:
            import yaml

            try:
                loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
                self._configurations[file] = yaml.load(file.read_text(encoding="utf-8"), loader)
            except (OSError, ValueError, yaml.YAMLError):
                self._configurations[file] = {"defaults": []}
        return self._configurations[file]


def _find_value(values: Any, keys: list[str]) -> Any:
    """Return the value of a dotted key: None where it isn't there, ``{}`` where the file alone can't tell."""
    if isinstance(values, dict) and "defaults" in values:
        return {}
    for key in keys:
        if values == {}:
            break
        if not isinstance(values, dict) or key not in values:
            return None
        values = {} if values[key] is None else values[key]
    return values


def read_constructor(source: ClassSource) -> tuple[set[str], bool]:
    """Read what a class is made with: the names, and whether it may take others."""
    names: set[str] = set()
    lineage = source.lineage()
    is_partial = any(one.is_partial for one in lineage)
    for cls in lineage:
        methods = [one for one in cls.node.body if isinstance(one, ast.FunctionDef)]
        made = next((one for one in methods if one.name in ("__init__", "__new__")), None)
        if made is not None:
            arguments, takes_others = _read_arguments(made)
            names |= arguments
            if not takes_others:
                return names, False
        elif cls.node.decorator_list or any(one.is_made_of_fields for one in cls.lineage()):
            decorators = [one.func if isinstance(one, ast.Call) else one for one in cls.node.decorator_list]
            known = all(ast.unparse(one).rpartition(".")[2] in _MAKE_OF_FIELDS for one in decorators)
            return names | find_fields(cls).keys(), is_partial or not known
    # What is passed on to nobody here is taken by whoever isn't found.
    return names, is_partial or bool(names)


def _read_arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[set[str], bool]:
    """Read a function's parameters, and whether it takes others by ``**``."""
    arguments = node.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return {one.arg for one in every}, arguments.kwarg is not None
