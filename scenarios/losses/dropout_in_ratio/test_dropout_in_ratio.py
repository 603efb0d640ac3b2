import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.stack.lazy import np, torch

SEQUENCES = [[(start * 91 + step * 37) % 1000 + 5 for step in range(48)] for start in range(4)]
CLIP = 0.2
KINDS = pytest.mark.parametrize("kind", ["lora", "attention"])


def policy(qwen, kind):
    """The model as a trainer has it: in training mode. LoRA's dropout is a module, attention's is a number."""
    model = qwen.model()
    if kind == "lora":
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(0)  # with init_lora_weights=False the adapter is drawn
        modules = ["q_proj", "v_proj"]
        config = LoraConfig(r=8, lora_dropout=0.05, target_modules=modules, init_lora_weights=False)
        return get_peft_model(model, config).train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.05
    return model.train()


def log_ratios(model):
    """Log-probabilities after the update, less those before: with no update between them."""
    from pytest_rlregress.agreement.logprobs import token_logprobs

    old, new = (np.array(token_logprobs(model, SEQUENCES)) for _ in range(2))
    return new - old


@pytest.mark.reproduces("dropout-in-ratio")
@KINDS
def test_ratio_at_learning_rate_0(sharp_qwen, kind):
    with act():
        off = np.abs(np.exp(log_ratios(policy(sharp_qwen, kind))) - 1)
    outside = (off > CLIP).mean()
    if outside:
        silent(f"at learning rate 0 the ratio of {outside:.0%} of the tokens is outside of the clip range")


@pytest.mark.guards("dropout-in-ratio")
@pytest.mark.needs("peft")
@KINDS
def test_ratio_is_1(sharp_qwen, subject, kind):
    from pytest_rlregress.agreement.logprobs import floor

    model = policy(sharp_qwen, kind)
    allowed = 2 * floor(sharp_qwen.model(), SEQUENCES[:1])  # two scorings, each with its rounding
    with act():
        changed = subject(model)
    assert changed > 0
    assert model.training
    assert np.abs(log_ratios(model)).mean() <= allowed
    assert subject(model) == 0


@pytest.mark.guards("dropout-in-ratio")
@pytest.mark.needs("peft")
@KINDS
def test_model_is_the_same_otherwise(sharp_qwen, subject, kind):
    """Scored as in eval mode, and trained as before: the same parameters get gradients."""
    from pytest_rlregress.agreement.logprobs import floor, mean_gap, token_logprobs

    model = policy(sharp_qwen, kind)
    wanted = token_logprobs(model.eval(), SEQUENCES)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    model.train()
    model.get_submodule("base_model" if kind == "lora" else "model").eval()
    modes = [module.training for module in model.modules()]
    config = model.config.to_dict()
    with act():
        subject(model)
    assert [module.training for module in model.modules()] == modes
    assert model.config.to_dict() == config
    assert mean_gap(token_logprobs(model.train(), SEQUENCES), wanted) <= 2 * floor(sharp_qwen.model(), SEQUENCES[:1])
    model(input_ids=torch.tensor(SEQUENCES)).logits.square().mean().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is not None] == trained


@pytest.mark.guards("dropout-in-ratio")
def test_every_kind_of_dropout(subject):
    """Modules by any name; numbers by theirs. What else is called so stays, a module of another kind say."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.shut = torch.nn.Dropout(0.1)
            self.rows = torch.nn.Dropout1d(0.1)
            self.alpha = torch.nn.AlphaDropout(0.1)
            self.off = torch.nn.Dropout(0.0)
            self.attention_dropout, self.dropout_p, self.use_dropout = 0.1, 0.2, True
            self.rate = 0.3
            self.lstm = torch.nn.LSTM(2, 2, num_layers=2, dropout=0.1)

    layer = Layer()
    with act():
        assert subject(torch.nn.Sequential(layer)) == 6
    assert [layer.shut.p, layer.rows.p, layer.alpha.p, layer.off.p, layer.lstm.dropout] == [0] * 5
    assert (layer.attention_dropout, layer.dropout_p, layer.use_dropout, layer.rate) == (0, 0, True, 0.3)
