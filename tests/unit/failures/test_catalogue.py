"""The catalogue: what it reads, what it expects where, and how it complains."""

from __future__ import annotations

import json

import pytest

from pytest_rlregress import cli, remedies
from pytest_rlregress.failures.catalogue import SHIPPED, CatalogueError, load
from pytest_rlregress.stack import Stack

GOOD = """
title = "A column is short"
seen_on = "H20"
components = { verl = "<0.9" }
cause = "c"
remedy = "r"
"""
SIGNATURE = '[[signature]]\nsays = ["x"]\n'


def read(tmp_path, text):
    path = tmp_path / "short_column" / "failure.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return load([tmp_path])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[signature]\n", "not readable as TOML"),
        (
            GOOD.replace('title = "A column is short"\n', ""),
            "failure short-column: key 'title': missing; allowed: a text",
        ),
        (GOOD.replace("H20", ""), "key 'seen_on': '' is not allowed; allowed: a text that is not empty"),
        (GOOD + 'color = "red"\n', "key 'color': unknown; allowed: title, seen_on"),
        (
            GOOD.replace("verl =", "verlll ="),
            "key 'components': {'verlll': '<0.9'} is not allowed; allowed: a table of torch, vllm",
        ),
        (
            GOOD.replace("remedy =", "remedy.openrlhf ="),
            "key 'remedy': {'openrlhf': 'r'} is not allowed; allowed: a text, or a text for each of any, verl, trl",
        ),
        (GOOD.replace("remedy =", "remedy.verl =").replace('"r"', '""'), "key 'remedy': {'verl': ''} is not allowed"),
        (GOOD + 'expected = "gone"\n', "key 'expected': 'gone' is not allowed; allowed: reproduced, absent"),
        (
            GOOD.replace('"<0.9"', '"5"'),
            "verl: '5' isn't one, it takes a condition such as '<0.9', '==5.*' or '>=5', or 'any'",
        ),
        (
            GOOD + 'absent_since = { verl = "soon" }\n',
            "allowed: a table such as { verl = \"0.9\" }; verl: 'soon' isn't one",
        ),
        (
            GOOD + SIGNATURE.replace("x", "{y}").replace("[[", 'where = { y = "(" }\n[[', 1),
            "signature 1: the hole 'y' isn't a regular expression (missing )",
        ),
        (
            GOOD + SIGNATURE.replace("x", "No module named '{trainer}'"),
            "signature 1: \"No module named '{trainer}'\": no hole is called 'trainer'; allowed: {}, {name}, ",
        ),
        (GOOD + SIGNATURE.replace("x", "a } b"), "signature 1: 'a } b' has a single brace; write {{ or }} for one"),
        (GOOD + '[[signature]]\nconfirm = "x"\n', "signature 1: identifies nothing; give says, in, signal"),
        (
            GOOD + '[[signature]]\nsignal = "SIGFOO"\n',
            "key 'signal': 'SIGFOO' is not allowed; allowed: a signal of this system",
        ),
        (GOOD + '[[signature]]\nsay = ["x"]\n', "key 'say': unknown; allowed: says, in, signal"),
        (GOOD + SIGNATURE + 'kind = "hangs"\n', "key 'kind': 'hangs' is not allowed; allowed: failed, crashed, hung"),
        (
            GOOD + SIGNATURE + 'with = ["vllm"]\n',
            "signature 1: key 'with' without 'confirm'",
        ),
        (
            GOOD + SIGNATURE + 'with = ["{number}v"]\nconfirm = "an engine"\n',
            "signature 1: key 'with': '{number}v' has fewer than 3 plain characters in a row",
        ),
        (GOOD + 'fidelity = "mock"\n', "key 'fidelity': 'mock' is not allowed; allowed: real, stand-in, injected"),
        (GOOD + 'refuted = [{ remedy = "x" }]\n', "refuted 1: key 'why': missing; allowed: a text that is not empty"),
        (GOOD + 'signature = "x"\n', "key 'signature': 'x' is not allowed; allowed: tables"),
        ('[[failure]]\nid = "x"\n', "key 'failure': unknown"),
    ],
)
def test_rejects_malformed_files(tmp_path, text, words):
    with pytest.raises(CatalogueError) as caught:
        read(tmp_path, text)
    assert str(tmp_path / "short_column" / "failure.toml") in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["Short", "short column", "_short"])
def test_the_name_of_the_folder_is_the_id(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "failure.toml").write_text(GOOD)
    with pytest.raises(CatalogueError, match=r"the name of its folder is not that of a failure; allowed: lower-case"):
        load([tmp_path])


def test_rejects_two_folders_with_one_name(tmp_path):
    for area in ("a", "b"):
        (tmp_path / area).mkdir()
        read(tmp_path / area, GOOD)
    with pytest.raises(CatalogueError, match=r"b/short_column/failure.toml: .* id also given in .*/a/short_column"):
        load([tmp_path])


def test_a_hole_names_a_list_of_words(tmp_path):
    text = SIGNATURE.replace("x", "No module named '{trainer_module}'")
    (signature,) = read(tmp_path, GOOD + text)["short-column"].signatures
    assert signature.message.search("No module named 'verl'")
    assert signature.message.search("No module named 'skyrl_train'")
    assert not signature.message.search("No module named 'vllm'")


def test_expected_verdict_depends_on_hardware_and_stack(tmp_path):
    catalogue = read(
        tmp_path,
        GOOD + 'expected = "absent"\n'
        'expected_where = [{ hardware = ["h20"], stack = { nvidia-cublas-cu12 = "<12.4" }, verdict = "reproduced" }]\n',
    )
    failure = catalogue["short-column"]
    old, new = Stack({"nvidia-cublas-cu12": "12.1.3.1"}), Stack({"nvidia-cublas-cu12": "12.4.5.8"})
    assert failure.expects("h20", old) == "reproduced"
    assert failure.expects("h20", new) == "absent"
    assert failure.expects("h100", old) == "absent"
    assert failure.expects("cpu", Stack({})) == "absent"


def test_failure_is_expected_absent_from_a_version_on(tmp_path):
    failure = read(tmp_path, GOOD + 'absent_since = { verl = "1.0" }\n')["short-column"]
    assert failure.gone(Stack({"verl": "0.9.1"})) is None
    assert failure.gone(Stack({"verl": "1.1"})) == "verl 1.1 (absent since 1.0)"
    assert failure.expects("cpu", Stack({"verl": "1.1"})) == "absent"


def test_unknown_id_names_the_closest(tmp_path):
    catalogue = read(tmp_path, GOOD)
    with pytest.raises(
        CatalogueError, match=r"test_x.py: reproduces: failure id 'short-colum'.*Did you mean short-column\?"
    ):
        catalogue.find("short-colum", "test_x.py: reproduces")


SHIPPED_FAILURES = list(load([SHIPPED]).values())


@pytest.mark.parametrize("failure", SHIPPED_FAILURES, ids=lambda failure: failure.id)
def test_a_shipped_failure_has_a_test_of_each_side(failure):
    assert failure.missing_sides() == []
    assert failure.fidelity
    assert failure.documented == (failure.area != "training")
    if failure.documented:
        assert failure.seen
        assert failure.measured
    if failure.subject:
        assert callable(getattr(remedies, failure.subject))


@pytest.mark.parametrize(
    ("tests", "missing"),
    [
        ("", ["reproduces", "guards"]),
        ('@pytest.mark.reproduces("short-column")\ndef test_act(): ...\n', ["guards"]),
        ('pytestmark = pytest.mark.guards("short-column")\n', ["reproduces"]),
        ('@pytest.mark.guards("long-column")\ndef test_remedy(): ...\n', ["reproduces", "guards"]),
    ],
)
def test_knows_the_sides_without_a_test(tmp_path, tests, missing):
    failure = read(tmp_path, GOOD + 'seen = "s"\n')["short-column"]
    (failure.folder / "test_it.py").write_text(tests)
    assert failure.missing_sides() == missing


def test_a_training_step_has_guards_alone(tmp_path):
    failure = read(tmp_path, GOOD)["short-column"]
    (failure.folder / "test_it.py").write_text('pytestmark = pytest.mark.guards("short-column")\n')
    assert failure.missing_sides() == []


REFUTED = """refuted = [
  { remedy = "Downgrade grpcio", why = "nothing changes." },
  { remedy = "Start again", why = "it comes back." },
]
"""


def test_list_shows_refuted_remedies(tmp_path, capsys):
    read(tmp_path, GOOD + REFUTED)
    asked = ["list", "short-column", "--scenarios", str(tmp_path)]
    cli.main(asked)
    told = capsys.readouterr().out
    assert "  remedy: r\n  does not help: Downgrade grpcio: nothing changes.\n  does not help: Start again: it" in told
    cli.main([*asked, "--json"])
    [found] = json.loads(capsys.readouterr().out)
    assert found["refuted"][0] == {"remedy": "Downgrade grpcio", "why": "nothing changes."}
    cli.main([*asked, "--markdown"])
    page = "## What does not help\n\n- Downgrade grpcio: nothing changes.\n- Start again: it comes back.\n"
    assert page in capsys.readouterr().out


def test_remedy_uses_the_keys_of_the_requested_trainer(tmp_path):
    keys = {"any": "Take less.", "verl": "data.n=1.", "trl": "n=1."}
    text = "".join(f'remedy.{name} = "{one}"\n' for name, one in keys.items())
    failure = read(tmp_path, GOOD.replace('remedy = "r"\n', text))["short-column"]
    assert failure.remedy == "Take less. verl: data.n=1. TRL: n=1."
    assert failure.remedy_with("verl") == "Take less. verl: data.n=1."
    assert failure.remedy_with("prime-rl") == "Take less."
    only = read(tmp_path, GOOD.replace("remedy =", "remedy.verl ="))["short-column"]
    assert only.remedy_with("trl") == only.remedy == "verl: r"
