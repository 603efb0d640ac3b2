from mutants import broken, replaces
from pytest_rlregress.remedies.memory import predict_training_memory


@broken(only="-7b-lora-checkpointed")
def loss_takes_nothing(**sizes):
    return predict_training_memory(**{**sizes, "vocab_size": 0})


@broken(only="-0.5b-checkpointed")
def no_optimizer(**sizes):
    return predict_training_memory(**{**sizes, "trainable": 0})


@replaces("absent", ".test_trainer_engine_oom.train", only="test_memory_runs_out")
def checkpoints_by_itself(original, model, tokens):
    model.gradient_checkpointing_enable({"use_reentrant": False})
    original(model, tokens)


@replaces("changed", "transformers.Qwen2ForCausalLM.forward")
def forward_fails_otherwise(model, *args, **keywords):
    raise RuntimeError("can't allocate memory")
