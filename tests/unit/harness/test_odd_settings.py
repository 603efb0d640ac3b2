"""Every setting takes any text: it is a value, or an error in one sentence that a terminal can show."""

from __future__ import annotations

import math
from types import SimpleNamespace

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_rlregress.harness import settings

TEXTS = (
    st.text(max_size=40)
    | st.from_regex(r"[\w.+-]+\s*=\s*[\w.]+:\w+", fullmatch=True)
    | st.from_regex(r"-?\d+(\.\d+)?(e\d+)? ?[KMG]?i?B?", fullmatch=True)
    | st.text("s3htp://.@:?#[]%\0 ab~")
    | st.lists(st.sampled_from(["vllm", "torch", "nope", "", "double-bos", "\x1b[2J"])).map(",".join)
)
ODD = [
    "",
    "nan",
    "9" * 400,
    "9" * 5000,
    "9" * 400 + "GiB",
    "1e308",
    "\udcff",
    "\0",
    "~" + "x" * 300,
    "http://[::1",
    "a://\0",
]


def resolve(option, text, how, folder):
    """Resolve one setting as pytest does it: by the command line, the environment or an ini file."""
    line = {option.key: text} if how == "line" else {}
    ini = {option.key: text} if how == "ini" else {}
    config = SimpleNamespace(
        getoption=lambda key, default: line.get(key, default),
        getini=lambda key: ini.get(key, ""),
        inipath=None,
        rootpath=folder,
        invocation_params=SimpleNamespace(dir=folder),
    )
    return settings.resolve_one(config, option.name)[0]


@pytest.mark.parametrize("how", ["line", "environment", "ini"])
@pytest.mark.parametrize("option", settings.OPTIONS, ids=lambda option: option.name)
def test_any_text_is_a_value_or_one_sentence(option, how, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()

    def check(text):
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv(option.env, raising=False)
            if how == "environment":
                patch.setattr(settings.os, "environ", {option.env: text})  # the real one takes no NUL
            try:
                value = resolve(option, text, how, folder)
            except pytest.UsageError as error:
                said = str(error)
                assert said.isprintable(), ascii(said)
                assert len(said) < 1500
                assert option.flag in said or option.env in said or option.key in said
            else:
                assert not isinstance(value, float) or value > 0
                assert not isinstance(value, int) or math.isfinite(value)
                assert option.name != "hw" or value is None or value.isprintable()

    for text in ODD:
        check(text)
    hypothesis.settings(max_examples=40, deadline=None)(given(TEXTS)(check))()
