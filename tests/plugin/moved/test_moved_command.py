"""``rlregress moved`` on small wheels: verl's configuration is composed in a process of its own."""

import json
import textwrap
from dataclasses import replace

import pytest
from made_wheels import make_wheel, serve, serve_links

from pytest_rlregress.cli import main
from pytest_rlregress.commands.bisect.answer import Culprit, Endpoint
from pytest_rlregress.commands.bisect.changes import list_changes

pytest.importorskip("hydra", reason="composes verl's configuration")
MAIN = '@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)\ndef main(config): ...\n'
ACTOR = "class ActorConfig:\n    mode: str = 'async'\n    hidden: int = 1\n    def __post_init__(self):\n"
REFUSES = '        if self.mode == "sync":\n            raise ValueError("sync was removed. Set mode=async.")\n'
MIGRATES = "def migrate_legacy_impl(config):\n    config.reward.workers = config.reward_model.workers\n"


def write_release(folder, version, defaults, *, legacy="", actor="", extra=None):
    """Write a wheel of verl: a configuration of two files, the generated one, and its code."""
    actor_table = f"_target_: verl.workers.ActorConfig\n{actor}"
    generated = f"{defaults}actor:\n{textwrap.indent(actor_table, '  ')}{legacy}"
    files = {
        "verl/trainer/main_ppo.py": MAIN,
        "verl/trainer/config/ppo_trainer.yaml": f"defaults:\n  - actor@actor: base\n  - _self_\n{defaults}{legacy}",
        "verl/trainer/config/actor/base.yaml": actor_table,
        "verl/trainer/config/_generated_ppo_trainer.yaml": generated,
        "verl/workers/__init__.py": ACTOR + REFUSES,
        "verl/migrate.py": MIGRATES,
        **(extra or {}),
    }
    make_wheel(folder, "verl", version, files)


@pytest.fixture
def links(tmp_path, monkeypatch):
    folder = serve_links(monkeypatch, tmp_path)
    legacy = "reward_model:\n  workers: 4\n  old: 1\n"
    first = "data:\n  batch: 8\n  length: ${data.batch}\n  seqs: 1024\n  nested:\n    gone: 1\n"
    write_release(folder, "9001.0", first, legacy=legacy, actor="mode: async\nlr: 1\n")
    second = "data:\n  batch: 8\n  length: 8\n  seqs: 256\n  here:\n    gone: 1\n"
    write_release(folder, "9001.1", second, legacy=legacy, actor="mode: async\nlr: 1\n")
    third = f"{second}reward:\n  workers: 8\n"
    write_release(folder, "9001.2", third, legacy="reward_model:\n  workers: null\n", actor="mode: async\nlr: 1\n")
    return folder


def ask(capsys, *words, releases="verl==9001.0..9001.2"):
    code = main(["moved", releases, "--json", *words])
    printed = capsys.readouterr()
    found = json.loads(printed.out) if printed.out else {"findings": []}
    concerns = {one["key"]: one for one in found["findings"] if one["concerns"]}
    return code, concerns, found, printed.err


def command(*words):
    return ("--", "python3", "-m", "verl.trainer.main_ppo", *words)


def test_finds_defaults_that_moved_by_their_resolved_values(capsys, links):
    code, found, _, _ = ask(capsys, *command("data.batch=8"))
    assert code == 1
    assert {key: (one["before"], one["after"], one["release"]) for key, one in found.items()} == {
        "data.seqs": (1024, 256, "9001.1"),
        "reward.workers": (4, 8, "9001.2"),
    }


def test_a_reference_that_became_a_value_moves_with_the_run(capsys, links):
    found = ask(capsys, *command("data.batch=16"))[1]
    assert (found["data.length"]["before"], found["data.length"]["after"]) == (16, 8)


def test_names_keys_that_are_gone(capsys, links):
    words = ("data.nested.gone=2", "data.seqs=9", "reward_model.workers=4", "reward_model.old=2", "actor.mode=sync")
    code, found, _, _ = ask(capsys, *command(*words))
    told = {key: (one["change"], one["release"], one["instead"], one["sure"]) for key, one in found.items()}
    assert code == 1
    assert told == {
        "data.nested.gone": ("gone", "9001.1", "data.here.gone", False),
        "reward_model.old": ("gone", "9001.2", "", False),
        "actor.mode": ("refused", "", "", True),  # by both ends
    }
    assert "sync was removed" in found["actor.mode"]["why"]


def test_an_added_key_must_be_a_field_and_new(capsys, links):
    words = ("+actor.hidden=2", "+actor.unknown=2", "+actor.lr=3", "data.seqs=9")
    found = ask(capsys, *command(*words))[1]
    assert "actor.hidden" not in found
    assert "takes no unknown" in found["actor.unknown"]["why"]
    assert "without the plus sign" in found["actor.lr"]["why"]


def test_reads_a_file_of_the_run(capsys, links, tmp_path):
    (tmp_path / "run.yaml").write_text("data:\n  seqs: 9\n  nested:\n    gone: 3\n")
    found = ask(capsys, str(tmp_path / "run.yaml"))[1]
    assert found["data.nested.gone"]["place"] == f"{tmp_path}/run.yaml:4"
    assert "data.seqs" not in found


def test_says_that_nothing_moved(capsys, links):
    defaults = "data:\n  batch: 8\n"
    for version in ("9002.0", "9002.1"):
        write_release(links, version, defaults, actor="lr: 1\n")
    code, found, document, _ = ask(capsys, *command("data.batch=8"), releases="verl==9002.0..9002.1")
    assert (code, found) == (0, {})
    assert document["sentence"].endswith("nothing that concerns verl.trainer.main_ppo moved.")


def test_composition_that_fails_is_not_green(capsys, links):
    broken = {"verl/trainer/config/ppo_trainer.yaml": "defaults:\n  - missing@actor: base\n"}
    write_release(links, "9001.3", "data:\n  batch: 8\n", actor="lr: 1\n", extra=broken)
    code, _, document, _ = ask(capsys, *command("data.batch=8"), releases="verl==9001.2..9001.3")
    assert code == 3
    assert "can't be composed" in document["not_read"][0]


def test_needs_no_network_the_second_time(capsys, links, tmp_path, monkeypatch):
    monkeypatch.delenv("UV_FIND_LINKS")
    with serve(links) as (url, _):
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        first = ask(capsys, *command("data.batch=8"))[2]
    assert main(["moved", "verl==9001.0..9001.2", "--offline", "--json", *command("data.batch=8")]) == 1
    assert json.loads(capsys.readouterr().out)["findings"] == first["findings"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["verl=1"], "names no releases: write verl=="),
        ([], "names no releases"),
        (["verl==9001.9..9001.2"], "has no wheel: the nearest that has one is 9001.2"),
        (["numpy==1.0..2.0"], "numpy isn't compared"),
        (["verl==9001.0..9001.2", "--", "ls", "-l"], "starts none of python"),
        (["verl==9001.0..9001.2", "missing.yaml"], "missing.yaml: cannot be read"),
        (["verl==9001.0..9001.2", "broken.yaml"], "broken.yaml"),
        (["verl==9001.0..9001.2", "--", "trl", "grpo"], "is a run of trl, and verl is what moves"),
        (["verl==9001.0..9001.0"], "is both ends"),
    ],
)
def test_says_in_a_sentence_that_the_input_is_bad(capsys, links, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.yaml").write_text("data: [1\n")
    assert main(["moved", *words]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert not printed.out


def test_an_index_that_cannot_be_asked_is_not_green(capsys, links, monkeypatch):
    monkeypatch.delenv("UV_FIND_LINKS")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    code, _, document, _ = ask(capsys, *command("data.batch=8"))
    assert code == 3
    assert "the index can't be asked" in document["not_read"][0]
    assert document["sentence"].endswith("nothing was compared.")


@pytest.mark.parametrize("labels", [("9001.1", "9001.2"), ("9001.2", "9001.1")], ids=["broke", "repaired"])
def test_a_bisect_names_what_the_release_changes(links, tmp_path, labels):
    culprit = Culprit("verl", *(Endpoint(label, None) for label in labels))
    changes = list_changes(culprit, tmp_path / "cache", offline=False)
    assert changes[0].startswith("verl 9001.1 → 9001.2: ")
    assert changes[1:] == ("reward.workers: 4 → 8 since 9001.2",)
    assert list_changes(replace(culprit, name="thing"), tmp_path / "cache", offline=False) == ()
    [line] = list_changes(replace(culprit, first_bad=Endpoint("9002", None)), tmp_path / "cache", offline=False)
    assert "what moved was not read" in line
