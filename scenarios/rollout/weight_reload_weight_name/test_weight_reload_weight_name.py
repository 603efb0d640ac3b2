import pytest

from pytest_rlregress.agreement.logprobs import mean_gap
from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures import tiny_model, vllm_engine
from pytest_rlregress.scenarios.rollout.weight_reload_weight_name.new_weights import (
    LONG,
    SEQUENCES,
    TOLERANCE,
    after_an_update,
    logprobs_of,
    tolerance,
)

GPU = pytest.mark.hw(capability=">=8.0")
CPU = pytest.mark.hw("cpu")  # where vLLM repacks dense layers and experts, and keeps a copy of a tied head
# In a child of their own: an engine beside the folder's would share its process groups.
EXPERTS = pytest.mark.isolated(group="rollout experts")
ENGINE = pytest.mark.needs("vllm-engine")
EXPERTS_AS_SENT = {"dtype": "bfloat16", "scale": 2.5}  # weights with a standard deviation of 0.05
EVERY_KIND = pytest.mark.parametrize("experts", ["qwen3-moe", "gpt-oss"], indirect=True)


def check_reloaded(engine, wanted, most=TOLERANCE):
    off = mean_gap(engine.logprobs(SEQUENCES), wanted)
    if not off < most:
        silent(f"{off:.3f} nats a token from the model with the new weights, and no error")


def load_raw(engine, weights):
    """The failing act: what loaded the first weights, once more."""
    engine.llm.apply_model(lambda model: model.load_weights(iter(weights)))
    engine.llm.reset_prefix_cache()


def check_cache(engine):
    """Generation may use what is cached of a prompt, scoring never does: they agree where it is of these weights."""
    [completion] = engine.generate([LONG], 8, temperature=0.0, ignore_eos=True)
    [scored] = engine.logprobs([LONG + completion.ids])
    off = mean_gap([completion.logprobs], [scored[-len(completion.ids) :]])
    assert off < TOLERANCE, f"generated as if by other weights, {off:.3f} nats a token: the cache is of the old ones"


def check_updates(engine, reload, old, new, most=TOLERANCE):
    """Every update arrives, the one after it too; ``old`` and ``new`` are weights and what a model with them says."""
    assert mean_gap(old[1], new[1]) > 10 * TOLERANCE, "the two models are too alike to tell"
    for weights, wanted in (new, old, new):
        reload(engine.llm, iter(weights.items()))
        check_reloaded(engine, wanted, most)
        check_cache(engine)


@pytest.fixture
def engine(vllm_engine, tiny_qwen):
    """The folder's engine, which gets its weights back; they are loaded before, too: a vLLM that takes none says so."""
    weights = tiny_qwen.model().state_dict()
    vllm_engine.load_weights(weights.items())
    yield vllm_engine
    vllm_engine.load_weights(weights.items())


@pytest.fixture
def trained(tiny_qwen):
    return after_an_update(tiny_qwen.model())


@pytest.fixture(scope="module")
def experts(request, progress):
    """An engine on a mixture of experts; its weights and another seed's, each with what a model with them says."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    folders = [tiny_model.build(request.param, seed=seed, **EXPERTS_AS_SENT).directory for seed in range(2)]
    models = [AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval() for folder in folders]
    weights = [load_file(folder / "model.safetensors") for folder in folders]
    with vllm_engine.start(folders[0], say=progress, dtype="bfloat16") as engine:
        yield engine, *zip(weights, map(logprobs_of, models), strict=True)


@CPU
@pytest.mark.reproduces("weight-reload-weight-name")
def test_raw_load(engine, trained):
    with act():
        load_raw(engine, trained.state_dict().items())
        check_reloaded(engine, logprobs_of(trained))


@CPU
@pytest.mark.reproduces("weight-reload-weight-name")
def test_tied_head_not_sent(engine, trained):
    """A tied head isn't a parameter of its own: ``named_parameters()`` has none."""
    with act():
        engine.load_weights(trained.named_parameters())
        check_reloaded(engine, logprobs_of(trained))


@pytest.mark.guards("weight-reload-weight-name")
@pytest.mark.parametrize("tied_head", ["sent", "not-sent"])
def test_dense_update_arrives(engine, subject, tiny_qwen, trained, tied_head):
    checkpoints = [
        (dict(model.state_dict() if tied_head == "sent" else model.named_parameters()), logprobs_of(model))
        for model in (tiny_qwen.model(), trained)
    ]
    with act():
        check_updates(engine, subject, *checkpoints, tolerance())


@ENGINE
@EXPERTS
@pytest.mark.reproduces("weight-reload-weight-name")
@pytest.mark.parametrize(
    ("path", "experts"),
    [
        pytest.param("raw", "qwen3-moe", marks=CPU),
        pytest.param("raw", "gpt-oss", marks=CPU),
        pytest.param("supported", "qwen3-moe", marks=CPU),
        ("supported", "gpt-oss"),
    ],
    indirect=["experts"],
)
def test_experts(experts, path):
    engine, _, (weights, wanted) = experts
    with act():
        load_raw(engine, weights.items()) if path == "raw" else engine.load_weights(weights.items())
        check_reloaded(engine, wanted)


@ENGINE
@EXPERTS
@EVERY_KIND
@pytest.mark.guards("weight-reload-weight-name")
def test_update_of_experts_arrives(experts, subject):
    check_updates(experts[0], subject, *experts[1:])


@ENGINE
@GPU
@pytest.mark.isolated
@pytest.mark.reproduces("weight-reload-weight-name")
def test_quantised_experts(progress):
    """As documented: a CPU takes MXFP4 only with AMX."""
    from safetensors.torch import load_file

    folder = tiny_model.build("gpt-oss-mxfp4", **EXPERTS_AS_SENT).directory
    with vllm_engine.start(folder, say=progress) as engine:
        before = engine.logprobs(SEQUENCES)
        with act():
            load_raw(engine, load_file(folder / "model.safetensors").items())
            check_reloaded(engine, before)
