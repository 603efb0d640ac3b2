"""The settings of a run of pytest that were started here, for the commands: nothing is run or collected."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_rlregress.harness import settings

#: What an ini file asks of a run, and reading it does not need: options of other plugins above all.
_NOT_OF_A_READING = ("addopts", "required_plugins", "filterwarnings", "strict", "strict_config")


def scenario_folders() -> tuple[Path, ...]:
    """Return the folders with scenarios that a run would have, of the environment or the ini file that pytest finds.

    Raises:
        UsageError: pytest cannot read the ini file, which it has said on standard error, or one isn't a folder.
    """
    reader = _Reader()
    overrides = [part for name in _NOT_OF_A_READING for part in ("-o", f"{name}=")]
    with pytest.MonkeyPatch.context() as patch:
        # Other people's plugins take seconds to import, and none is needed.
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
            patch.delenv(name, raising=False)
        code = pytest.main(["--noconftest", "--capture=no", "--assert=plain", *overrides], plugins=[reader])
    if reader.problem is not None:
        raise reader.problem
    if reader.folders is None:
        raise pytest.UsageError(f"pytest cannot read its ini file: exit code {int(code)}")
    return reader.folders


class _Reader:
    """A plugin that looks at the configuration and ends the run before it begins."""

    folders: tuple[Path, ...] | None = None
    problem: pytest.UsageError | None = None

    def pytest_addoption(self, parser: pytest.Parser) -> None:
        settings.declare(parser)

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        try:
            self.folders = settings.resolve_one(config, "scenarios")[0]
        except pytest.UsageError as problem:
            self.problem = problem
        return 0
