"""A plain test of someone who has just installed the harness, bisected over real releases from the configured index."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_rlregress.environments import RequestError
from pytest_rlregress.environments.environment import Environments
from pytest_rlregress.environments.uv import read_settings

pytestmark = pytest.mark.nightly
TEST = """
    import pytest
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace


    {marker}
    def test_ids_are_a_list():
        words = Tokenizer(WordLevel({{"[UNK]": 0, "hi": 1}}, unk_token="[UNK]"))
        words.pre_tokenizer = Whitespace()
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
        tokenizer.chat_template = "{{% for message in messages %}}{{{{ message['content'] }}}} {{% endfor %}}"
        assert tokenizer.apply_chat_template([{{"role": "user", "content": "hi hi"}}]) == [1, 1]
"""


@pytest.fixture
def ask(tmp_path):
    """Asks which release of transformers broke the test; exit code, what was printed and said, the answer as JSON."""
    try:
        environments = Environments(tmp_path / "none", settings=read_settings(os.environ))
        environments.releases.find_newest("transformers", "", pre=False)
    except RequestError as error:
        pytest.skip(f"unavailable: {error}")

    def run(marker):
        (tmp_path / "test_t.py").write_text(inspect.cleandoc(TEST.format(marker=marker)))
        command = [
            Path(sys.executable).with_name("rlregress"),
            "bisect",
            "transformers",
            "--good=4.56.0",
            "--bad=5.3.0",
        ]
        where = [f"--cache-dir={tmp_path / 'cache'}", f"--json={tmp_path / 'answer.json'}"]
        done = subprocess.run(
            [*command, "test_t.py::test_ids_are_a_list", *where], cwd=tmp_path, capture_output=True, text=True
        )
        return done.returncode, done.stdout, done.stderr, json.loads((tmp_path / "answer.json").read_text())

    return run


def test_finds_out_the_packages_that_a_plain_test_needs(ask):
    rc, out, said, answer = ask("# no marker of ours")
    assert rc == 0, out + said
    (culprit,) = answer["culprits"]
    assert (culprit["first_bad"]["label"], culprit["last_good"]["label"]) == ("5.0.0", "4.57.6")
    assert "finding out what the test needs: " in said
    assert "AssertionError" in out
    (left_out,) = answer["run_context"]["left_out"]
    assert "that the tests do not import here" in left_out


def test_shows_the_error_of_a_missing_package(ask):
    rc, out, said, answer = ask('@pytest.mark.needs("transformers", "tokenizers")')
    assert rc == 1, out + said
    assert answer["not_found"]["kind"] == "fails at both"
    for end in answer["ends"]:
        assert f"What came out at {end['label']}" in out
        assert "ImportError: apply_chat_template requires jinja2" in end["text"]
    assert out.count("E           ImportError: apply_chat_template requires jinja2") >= 1
    assert "--all-packages" in out
