"""Read the settings: marker > command line > environment > ini, resolved once into a frozen ``Settings``.

The fields of ``Settings`` are the only declaration: the command line, the ini file, the environment, the resolution and
the error messages all read them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest

from pytest_rlregress.records import EXPECTATIONS
from pytest_rlregress.util.files import check_url
from pytest_rlregress.util.surroundings import expand
from pytest_rlregress.util.text import clean
from pytest_rlregress.util.units import parse_memory, parse_seconds

GOLDENS = Path(__file__).parents[1] / "hardware_markers" / "goldens"
_LONGEST_NAME = 200
#: Makes a value out of a text and the folder that paths in it are relative to; a ``ValueError`` says what is allowed.
Parse = Callable[[str, Path], Any]


@dataclass(frozen=True)
class Option:
    """How one setting is given.

    Attributes:
        takes: What its flag on the command line takes, empty for a switch; None: it has no flag.
        repeatable: Whether the flag may be given several times: the same as one list with commas.
    """

    name: str
    parse: Parse
    default: Any
    help: str
    takes: str | None = None
    repeatable: bool = False

    @property
    def flag(self) -> str:
        """Name on the command line."""
        return "--hw" if self.name == "hw" else f"--rl-{self.name.replace('_', '-')}"

    @property
    def key(self) -> str:
        """Name of the ini value, and of the parsed flag on ``config.option``."""
        return f"rlregress_{self.name}"

    @property
    def env(self) -> str:
        """Name of the environment variable."""
        return f"RLREGRESS_{self.name.upper()}"


def _name(text: str, _base: Path) -> str:
    name = text.strip()
    if not (name and name.isprintable() and len(name) <= _LONGEST_NAME):
        raise ValueError("a name such as cpu, h100, auto or list")
    return name


def _boolean(text: str, _base: Path) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false", "yes", "no", "on", "off", "1", "0"):
        raise ValueError("one of true, false, yes, no, on, off, 1, 0")
    return word in ("true", "yes", "on", "1")


def _ids(text: str, _base: Path) -> tuple[str, ...]:
    ids = tuple(text.replace(",", " ").split())
    if not ids:
        raise ValueError("ids of failures, separated by commas, such as double-bos,mask-length-drift")
    return ids


def _components(text: str, _base: Path) -> tuple[str, ...]:
    from pytest_rlregress.stack import COMPONENTS

    names = tuple(name for name in text.replace(",", " ").split())
    if not names or any(name not in COMPONENTS for name in names):
        raise ValueError(f"a comma-separated list out of {', '.join(COMPONENTS)}")
    return names


def _folders(text: str, base: Path) -> tuple[Path, ...]:
    folders = tuple(base / line.strip() for line in text.replace(os.pathsep, "\n").splitlines() if line.strip())
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"existing folders, one a line, relative to {base}; {folder} isn't a folder")
    return folders


def _folder(text: str, base: Path) -> Path:
    if not text.strip():
        raise ValueError("a folder, which is made if it is not there")
    return base / expand(text.strip())


def _file(text: str, base: Path) -> Path:
    path = base / expand(text.strip())
    if not (text.strip() and path.is_file()):
        raise ValueError("a file that is there")
    return path


def _records(text: str, base: Path) -> Path | str:
    if "://" not in text:
        return _folder(text, base)
    check_url(text)
    return text.strip()


def _assignments(text: str, _base: Path) -> dict[str, str]:
    from pytest_rlregress.failures.catalogue import OWN_FUNCTION

    pairs = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, target = (part.strip() for part in line.partition("="))
        known = name.isidentifier() or OWN_FUNCTION.fullmatch(name)
        if not (known and equals and OWN_FUNCTION.fullmatch(target)):
            raise ValueError("lines of the form subject = package.module:function, the subject as in failure.toml")
        pairs[name] = target
    return pairs


def _option(parse: Parse, default: Any, help: str, takes: str | None = None, repeatable: bool = False) -> Any:
    """Declare a setting: see ``Option``."""
    return field(metadata={"parse": parse, "default": default, "help": help, "takes": takes, "repeatable": repeatable})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting of a run, and in ``source`` where each value came from."""

    hw: str | None = _option(
        _name,
        None,
        "Run the shipped scenarios (no path needed) as this hardware profile: cpu, h100, … ; 'auto' takes the "
        "profile of this machine, 'list' prints the profiles with what each needs. Asking for hardware that is "
        "not here is a usage error; a hardware run in which no hardware test executed fails.",
        takes="PROFILE",
    )
    strict: bool = _option(
        _boolean,
        False,
        "Make 'absent' an error where the catalogue expects 'reproduced' (otherwise a notice: upstream fixed it).",
        takes="",
    )
    require: tuple[str, ...] = _option(
        _components,
        (),
        "Components that must be installed, e.g. vllm,ray: missing ones are an error instead of 'unavailable'.",
        takes="LIST",
        repeatable=True,
    )
    timeout: float = _option(
        lambda text, _base: parse_seconds(text),
        600.0,
        "Seconds a contained test may take before it counts as hung; isolated(timeout=…) on a test comes first "
        "(default: 600).",
        takes="SECONDS",
    )
    memory: int | None = _option(
        lambda text, _base: parse_memory(text),
        None,
        "Memory that a contained test and the processes it starts may use together, such as 8GiB; "
        "isolated(memory=…) on a test comes first (default: no limit).",
        takes="SIZE",
    )
    stall: float = _option(
        lambda text, _base: parse_seconds(text),
        4.0,
        "Seconds a test may go on after its engine logged an error and completed no request since; isolated(stall=…) "
        "on a test comes first, inf: for ever (default: 4).",
        takes="SECONDS",
    )
    inline: bool = _option(
        _boolean,
        False,
        "Run contained tests in pytest's own process, for debugging: no limits, no leak check, and a crash ends the "
        "session. --pdb and --trace imply it.",
        takes="",
    )
    long: bool = _option(
        _boolean,
        False,
        "Run the tests marked long too, which take a minute and more each; a nightly run wants them.",
        takes="",
    )
    quick: bool = _option(
        _boolean,
        False,
        "Run one reproduces and one guard of each failure that needs no engine, server or Ray cluster: for a laptop, "
        "or before a commit. --rl-long comes first.",
        takes="",
    )
    failure: tuple[str, ...] = _option(
        _ids,
        (),
        "Run only the tests of these failures, named by their ids (rlregress list --brief). Implies --hw=auto.",
        takes="IDS",
        repeatable=True,
    )
    component: tuple[str, ...] = _option(
        _components,
        (),
        "Run only the tests that need one of these components, e.g. vllm,ray, or whose failure is known in one. "
        "Implies --hw=auto.",
        takes="LIST",
        repeatable=True,
    )
    record_dir: Path | str | None = _option(
        _records,
        None,
        "Write a record of the run to this folder, or below this URL (s3://bucket/nightly): one JSON file in the "
        "Common Test Report Format, with the installed stack, the hardware and the verdicts.",
        takes="DIR",
    )
    update_goldens: bool = _option(
        _boolean,
        False,
        "Record the numbers of the training steps on this hardware and stack as a golden, to be committed, if "
        "the run has no failures; refused in a checkout with changes.",
        takes="",
    )
    goldens: Path = _option(_folder, GOLDENS, "Folder of the goldens (default: those of the package).")
    expect: Path | None = _option(
        _file,
        None,
        "Bad verdicts that are known and looked after: a run with no others is green, and one in which they are gone "
        f"is red. Default: {EXPECTATIONS} in the root folder, if it is there.",
        takes="FILE",
    )
    scenarios: tuple[Path, ...] = _option(
        _folders, (), "Folders with scenarios of your own, one a line, run beside the shipped ones."
    )
    hardware: tuple[Path, ...] = _option(_folders, (), "Folders with hardware profiles (TOML) of your own, one a line.")
    subjects: Mapping[str, str] = _option(
        _assignments,
        {},
        "Your implementations under the guards: subject = package.module:function, the subject as in failure.toml.",
    )
    source: Mapping[str, str]

    @property
    def start_timeout(self) -> float:
        """Seconds for what is imported before a test: as long as a test may take, however short, 120 at least."""
        return max(self.timeout, 120.0)


OPTIONS = tuple(Option(one.name, **one.metadata) for one in fields(Settings) if one.metadata)


def declare(parser: pytest.Parser) -> None:
    """Add every option to the command line and the ini file."""
    group = parser.getgroup("rlregress", "RL training stack regressions (rlregress)")
    for option in OPTIONS:
        text = f"{option.help} [also: environment {option.env}]"
        if option.takes:
            action = "append" if option.repeatable else "store"
            group.addoption(option.flag, dest=option.key, action=action, metavar=option.takes, help=option.help)
        elif option.takes is not None:
            group.addoption(option.flag, dest=option.key, action="store_const", const="true", help=option.help)
        parser.addini(option.key, text, type="string", default="")


def resolve(config: pytest.Config) -> Settings:
    """Read every setting from its first source that has it."""
    found = {option.name: resolve_one(config, option.name) for option in OPTIONS}
    for chooses in ("failure", "component"):
        value, source = found[chooses]
        if value and found["hw"][0] is None:
            found["hw"] = "auto", source
    values: dict[str, Any] = {name: value for name, (value, _) in found.items()}
    return Settings(**values, source={name: source for name, (_, source) in found.items()})


def resolve_one(config: pytest.Config, name: str) -> tuple[Any, str]:
    """Read one setting: its value, and where that came from; a usage error says what is allowed."""
    option = next(option for option in OPTIONS if option.name == name)
    ini_file = config.inipath.name if config.inipath else "ini file"
    candidates = (
        (config.getoption(option.key, None), f"command line {option.flag}", config.invocation_params.dir),
        (os.environ.get(option.env), f"environment {option.env}", config.invocation_params.dir),
        (config.getini(option.key) or None, f"{option.key} in {ini_file}", config.rootpath),
    )
    for text, source, base in candidates:
        if text is not None:
            text = ",".join(text) if isinstance(text, list) else text
            try:
                return option.parse(text, Path(base)), source
            except ValueError as allowed:
                raise pytest.UsageError(clean(f"{source}: {text!r:.200} is not allowed. Allowed: {allowed}.")) from None
            except OSError as error:
                raise pytest.UsageError(clean(f"{source}: {text!r:.200}: {error.strerror}.")) from None
    return option.default, "default"


def scenario_folders() -> tuple[Path, ...]:
    """Return the folders with scenarios that a run of pytest here would have, of the environment or its ini file.

    Raises:
        UsageError: The ini file cannot be read, or one isn't a folder.
    """
    # What an ini file asks of a run, and reading it does not need: options of other plugins above all.
    of_a_run = ("addopts", "required_plugins", "filterwarnings", "strict", "strict_config")
    overrides = [part for name in of_a_run for part in ("-o", f"{name}=")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        patch.delenv("PYTEST_PLUGINS", raising=False)
        config = pytest.Config.fromdictargs(
            {}, ["-p", __name__, "--noconftest", "--capture=no", "--assert=plain", *overrides]
        )
    return (*resolve_one(config, "scenarios")[0],)


pytest_addoption = declare  # for ``scenario_folders``, to which this module is a plugin
