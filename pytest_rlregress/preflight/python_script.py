"""Read a Python script that calls a trainer of TRL's: what it gives its configuration, its model and LoRA."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pytest_rlregress.preflight.formats import TRL_METHODS, UNKNOWN, ConfigError, ConfigPart, ConfigPosition
from pytest_rlregress.preflight.sources import name_of

_METHODS = {method.replace("_", ""): method for method in TRL_METHODS}  # as its classes are called, in lower case
_CALLED = re.compile(r"(?P<method>[A-Z]\w*)(?P<kind>Config|Trainer)")
# How from_pretrained and model_init_kwargs name what TRL's options name so too.
_OF_MODEL = ("dtype", "torch_dtype", "attn_implementation", "load_in_4bit", "load_in_8bit")
_NONE_CALLED = (
    "no call of a configuration of TRL's such as GRPOConfig(…). A script that reads them from its command line is "
    "checked with its command: rlregress preflight --hw=… -- COMMAND"
)


def read_python(text: str, file: str) -> ConfigPart:
    """Read the arguments of GRPOConfig and its like, of the trainer's model and of LoraConfig, without running it.

    Names are followed to what they are given once in the script; other values are not known.

    Raises:
        ConfigError: No configuration of TRL's is called, or several trainers' are.
        ValueError: No Python.
    """
    try:
        script = _Script(ast.parse(text), file)
    except SyntaxError as error:
        raise ValueError(f"no Python: line {error.lineno}: {error.msg}") from None
    return script.read()


def written(key: str, value: object) -> str:
    """Return an option of TRL's as a script writes it: ``use_vllm=True``."""
    if key == "use_peft":
        return "peft_config=LoraConfig()"
    return f"{key}={ {'true': 'True', 'false': 'False'}.get(str(value), repr(value)) }"


class _Script:
    """A script on its way to a part of the configuration."""

    def __init__(self, tree: ast.Module, file: str) -> None:
        self.part = ConfigPart(file, "trl")
        self.calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self.values = _given_once(tree)
        self.assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]

    def read(self) -> ConfigPart:
        called = [(match, call) for call in self.calls if (match := _CALLED.fullmatch(name_of(call.func)))]
        found = [
            (_METHODS[name], match["kind"], call)
            for match, call in called
            if (name := match["method"].lower()) in _METHODS
        ]
        configs = [call for _, kind, call in found if kind == "Config"]
        methods = sorted({method for method, kind, _ in found if kind == "Config"})
        if len(methods) != 1:
            several = f"configurations of {' and '.join(methods)}: check a script that has one"
            raise ConfigError(f"{self.part.file}: {several if methods else _NONE_CALLED}")
        self.part.program = f"trl {methods[0]}"
        for call in configs:
            for name, value in self._arguments(call, "output_dir"):
                if name == "model_init_kwargs":
                    self._take_model(self._entries(value))
                else:
                    self._take(name, value)
        for _, kind, call in found:
            if kind == "Trainer":
                self._take_trainer(dict(self._arguments(call, "model")), call)
        for node in self.assignments:
            self._take_variable(node)
        return self.part

    def _take(self, name: str, node: ast.expr, value: Any = None) -> None:
        value = self._value(node) if value is None else value
        if self.part.tree.get(name, value) != value:  # called twice
            value = UNKNOWN
        self.part.tree[name] = value
        self.part.places[name] = ConfigPosition(self.part.file, node.lineno)

    def _take_trainer(self, given: dict[str, ast.expr], call: ast.Call) -> None:
        model = self._followed(given["model"]) if "model" in given else ast.Name("unknown", lineno=call.lineno)
        from_pretrained = _calls(model, "from_pretrained")
        if from_pretrained:
            arguments = dict(self._arguments(from_pretrained, "model_name_or_path"))
            self._take("model_name_or_path", arguments.pop("model_name_or_path", model))
            self._take_model(arguments.items())
            self.part.tree.setdefault("dtype", self.part.tree.get("torch_dtype", "auto"))
        else:
            self._take("model_name_or_path", model)
        adapter = self._followed(given.get("peft_config", ast.Constant(None)))
        has_adapter: Any = UNKNOWN
        if _calls(model, "get_peft_model") or isinstance(adapter, ast.Call):
            has_adapter = True
        elif (from_pretrained or isinstance(model, ast.Constant)) and isinstance(adapter, ast.Constant):
            has_adapter = False
        self._take("use_peft", given.get("peft_config", call), has_adapter)
        for lora in self.calls if has_adapter is True else ():
            if name_of(lora.func) == "LoraConfig" and (lora is adapter or not isinstance(adapter, ast.Call)):
                rank = dict(self._arguments(lora, "r")).get("r", ast.Constant(8, lineno=lora.lineno))  # peft's default
                self._take("lora_r", rank)

    def _take_model(self, arguments: Any) -> None:
        for name, value in arguments:
            if name in _OF_MODEL:
                self._take(name, value)

    def _take_variable(self, node: ast.Assign) -> None:
        """Take ``os.environ["NAME"] = "value"``."""
        (target, *_) = node.targets
        if isinstance(target, ast.Subscript) and name_of(target.value) == "environ":
            name, value = self._value(target.slice), self._value(node.value)
            if UNKNOWN not in (name, value):
                self.part.exports[str(name)] = str(value)
                self.part.places[str(name)] = ConfigPosition(self.part.file, node.lineno)

    def _arguments(self, call: ast.Call, first: str) -> Iterator[tuple[str, ast.expr]]:
        """Yield a call's arguments by name, also of a dictionary that is handed over as ``**``."""
        if call.args:
            yield first, call.args[0]
        for keyword in call.keywords:
            if keyword.arg:
                yield keyword.arg, keyword.value
            else:
                yield from self._entries(keyword.value)

    def _entries(self, node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
        node = self._followed(node)
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield str(key.value), value
        elif isinstance(node, ast.Call) and name_of(node.func) == "dict":
            yield from self._arguments(node, "")

    def _followed(self, node: ast.expr) -> ast.expr:
        """Return what a name stands for, where that is given once."""
        for _ in range(10):  # of which any sane script has fewer
            if not isinstance(node, ast.Name) or node.id not in self.values:
                break
            node = self.values[node.id]
        return node

    def _value(self, node: ast.expr) -> Any:
        node = self._followed(node)
        if isinstance(node, ast.Attribute) and name_of(node.value) == "torch":
            return node.attr
        try:
            return ast.literal_eval(node)
        except ValueError:
            return UNKNOWN


def _calls(node: ast.expr, name: str) -> ast.Call | None:
    return node if isinstance(node, ast.Call) and name_of(node.func) == name else None


def _given_once(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the values of names that a script gives one by ``=``, and nowhere another in any way."""
    stored = Counter(
        node.id if isinstance(node, ast.Name) else node.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    )
    values = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    return {name: value for name, value in values.items() if stored[name] == 1}
