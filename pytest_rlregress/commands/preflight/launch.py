"""Find the command that a launch script comes to: the shell runs it, with stand-ins for what starts programs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from pytest_rlregress.commands.preflight.config import ConfigError
from pytest_rlregress.util.processes import end_with_parent

_SHELLS = ("bash", "sh", "zsh", "dash")
_SECONDS = 60.0
# What starts a trainer is noted; what installs, downloads, starts or removes does nothing.
_NOTED = ("python", "python3", "trl", "accelerate", "torchrun", "ray", "uv")
_DO_NOTHING = (
    *("pip", "pip3", "hf", "huggingface-cli", "wandb", "wget", "curl", "git", "ssh", "scp", "rsync", "docker"),
    *("srun", "sbatch", "sleep", "rm", "pkill", "kill", "killall", "nvidia-smi", "modelscope", "apt-get"),
)
# A stand-in writes its words and the environment, one noted command a file, and ends well. Python's -c goes on, as
# scripts compute with it.
_STAND_IN = """\
#!/bin/sh
name=${{0##*/}}
PATH={path}; export PATH
case "$name $1" in "python -c" | "python3 -c" | "python -" | "python3 -") exec "$name" "$@" ;; esac
at=0
while [ -e {folder}/$at.words ]; do at=$((at + 1)); done
env -0 > {folder}/$at.environ
printf '%s\\0' "$name" "$@" > {folder}/$at.words
"""
_ABSOLUTE = re.compile(r"(?:^|[\s;&|(])(/\S*/(?:python[\d.]*|torchrun|accelerate|trl))\s", re.MULTILINE)
_STARTS_TRAINER = re.compile(r"-m\n(?:verl|recipe)\.|\n[+~]{0,2}[a-z_]+(?:\.\w+)+=")


def find_command(command: Sequence[str], environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Find the command that starts a trainer: of a launch script the one that it comes to, else the command itself.

    Returns:
        Its words, and the environment variables that it is started with.

    Raises:
        ConfigError: The script starts none, or can't be run.
    """
    words = [*command]
    is_script = bool(words) and (Path(words[0]).name in _SHELLS or words[0].endswith((".sh", ".bash")))
    script = next((word for word in words if word.endswith((".sh", ".bash")) or os.path.isfile(word)), "")
    if not is_script or not os.path.isfile(script):
        return words, dict(environ)
    text = Path(script).read_text(encoding="utf-8", errors="replace")
    if found := _ABSOLUTE.search(text):
        raise ConfigError(f"{script} starts {found[1]} by its path: give the command that it comes to")
    noted = _run(words if Path(words[0]).name in _SHELLS else ["bash", *words], environ)
    trainers = [
        one for one in noted if one[0][0] not in ("python", "python3") or _STARTS_TRAINER.search("\n".join(one[0]))
    ]
    scripts = [one for one in noted if any(word.endswith(".py") for word in one[0])]
    if not trainers and not scripts:
        raise ConfigError(f"{script}: starts none of python, accelerate, torchrun and trl")
    return (trainers or scripts[-1:])[0]


def _run(words: Sequence[str], environ: Mapping[str, str]) -> list[tuple[list[str], dict[str, str]]]:
    """Run a script with the stand-ins; return what they noted."""
    with TemporaryDirectory(prefix="rlregress-") as name:
        folder, stand_ins = Path(name), Path(name, "bin")
        stand_ins.mkdir()
        for program in (*_NOTED, *_DO_NOTHING):
            file = stand_ins / program
            path = environ.get("PATH", os.defpath)
            noted = _STAND_IN.format(path=_quote(path), folder=_quote(name))
            file.write_text(noted if program in _NOTED else "#!/bin/sh\n")
            file.chmod(0o755)
        process = subprocess.Popen(
            [*words],
            env={**environ, "PATH": f"{stand_ins}{os.pathsep}{environ.get('PATH', os.defpath)}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=partial(end_with_parent, signal.SIGKILL, os.getpid()),
        )
        try:
            process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            raise ConfigError(f"{' '.join(words)}: that took more than {_SECONDS:.0f} seconds") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return [_read(file) for file in sorted(folder.glob("*.words"), key=lambda one: int(one.stem))]


def _read(file: Path) -> tuple[list[str], dict[str, str]]:
    words = file.read_text(encoding="utf-8", errors="replace").split("\0")[:-1]
    if words[0] in ("ray", "uv") and "--" in words:  # ray job submit -- python3 …
        words = words[words.index("--") + 1 :]
    lines = file.with_suffix(".environ").read_text(encoding="utf-8", errors="replace").split("\0")
    return words, dict(line.split("=", 1) for line in lines if "=" in line)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
