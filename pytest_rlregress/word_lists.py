"""Names that several signatures ask for: a pattern in ``failure.toml`` writes a list of them as ``(?&list)``.

A list stands for alternatives; beside anything else it belongs in parentheses: ``No module named '((?&verl))'``.
"""

from __future__ import annotations

import re

_VERL = (
    r"\bverl\b|verl/|fsdp_workers|megatron_workers|actor_rollout|ActorRollout|vllm_rollout|sglang_rollout|"
    "rollout_worker|main_ppo|TaskRunner|WorkerDict|ray_trainer|AgentLoop|agent_loop"
)
_RL_TRAINER = (
    f"{_VERL}|"
    r"\btrl\b|trl/|openrlhf|OpenRLHF|nemo_rl|NeMo-RL|prime_rl|prime-rl|skyrl|SkyRL|open_instruct|slime/|"
    "areal/|roll/pipeline|roll/distributed|GRPO|grpo|RLOO|rloo|PPOTrainer|OnlineDPO|rlhf|RLHF|rollout|"
    "Rollout|PolicyWorker|RayActor|GenerationWorker|unsloth"
)
#: What stands for what: names of packages and modules, and what shows in a log that something is part of the run.
LISTS = {
    # Of trainers whose engine may share their cards.
    "colocated": "verl/|fsdp_workers|megatron_workers|actor_rollout|ActorRollout|vllm_rollout|WorkerDict|"
    "dp_actor|megatron_actor|colocate|prime_rl|prime-rl|GRPOTrainer|grpo_trainer|use_vllm|openrlhf|"
    "OpenRLHF|PPOTrainer|main_task|nemo_rl|PolicyWorker|RayActor|PolicyModelActor|skyrl|slime/|"
    "roll/pipeline|roll/distributed|areal/|OnlineDPO|rloo_trainer|RLOOTrainer",
    "launcher": "llamafactory-cli|llamafactory|axolotl|openrlhf|torchrun|accelerate|deepspeed|trl|swift",
    "pinned_package": "torch|torchvision|torchaudio|triton|numpy|opencv-python-headless|xformers",
    "stack_package": "vllm|sglang|verl|megatron-core|tensordict|trl|transformers|unsloth|deepspeed|flash-attn|xformers|"
    "lmdeploy|openrlhf|llamafactory|ms-swift|nemo-rl|torchvision|torchaudio",
    "trainer_module": r"verl|trl|openrlhf|prime_rl|llamafactory|llmtuner|axolotl|nemo_rl|slime|areal|roll|swift|"
    r"skyrl\w*|open_instruct|torchtitan|xtuner|lmflow|rllm|oat|trlx",
    "verl": _VERL,
    "rl_trainer": _RL_TRAINER,
    # Of ids that a trainer or a rollout of several turns sampled.
    "rl_sampling": f"Training Progress:|{_RL_TRAINER}|multi_turn|multi-turn",
    "vision_model": r"VLConfig|VLForCond|VLMoe|_vl\b|_vl_|_VL\b|VLM|vlm|-VL\b|-VL-|-vl-|Llava|llava|LLaVA|Pixtral|"
    "pixtral|Idefics|idefics|Mllama|mllama|PaliGemma|paligemma|Gemma3Config|Gemma3nConfig|Gemma4Config|gemma-3-|"
    "gemma-3n|gemma-4-|Mistral3Config|Ministral|Florence|Blip2|InstructBlip|VisionConfig|Vision2Seq|"
    "ImageTextToText|InternVL|internvl|Glm4vConfig|Glm4v|glm4v|Molmo|KimiVL|Qwen2_5Omni|Omni|Ovis|"
    "MiniCPMV|MiniCPM-V|MiniCPMO|AyaVision|Llama4Config|Phi4Multimodal|Janus|Cohere2Vision|DeepseekOCR|"
    "Qwen3_5Config|Qwen3_5Moe|Chameleon",
    # Of new weights on their way into a running engine.
    "weight_update": "update_weight|update_params|Update engine weights online|reload|sync_weight|weight_sync|"
    "WeightSync|collective_rpc|refit|vllm_rollout|sharding_manager|update_named_param|load_synced|from_ipc|from_tensor|"
    "weight_transfer|rollout_worker|update_bucket|ParameterSynchronizer|param_sync",
    "windows": r"win_amd64|win_arm64|win32|C:\\|c:\\|D:\\|d:\\|E:\\|e:\\|F:\\|G:\\|C:/|D:/|Windows|windows|WinError|"
    r"MINGW64|\\Scripts\\|AppData",
}


def expand(pattern: str) -> str:
    """Put the lists into a pattern that names them.

    Raises:
        ValueError: A list of another name.
    """

    def listed(reference: re.Match[str]) -> str:
        if reference[1] not in LISTS:
            raise ValueError(f"a regular expression with lists of these names alone: {', '.join(LISTS)}")
        return LISTS[reference[1]]

    return re.sub(r"\(\?&([^)]*)\)", listed, pattern)
