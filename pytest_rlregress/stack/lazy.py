"""Packages that are slow to import, each imported where one of its names is first used."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """A module that is imported when a name of it is asked for; to patch one, give monkeypatch its dotted path."""

    def __getattr__(self, name: str) -> Any:
        # pytest asks whatever a test file has for _mock_name, __wrapped__, __test__ and more as it collects.
        if name.startswith("_") and self.__name__ not in sys.modules:
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)

    def __reduce__(self) -> Any:
        return LazyModule, (self.__name__,)


np: Any = LazyModule("numpy")
ray: Any = LazyModule("ray")
torch: Any = LazyModule("torch")
