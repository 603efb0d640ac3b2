#!/bin/bash
# LoRA of a 7B on four H100, by TRL's own command; every process holds the whole model.
export TOKENIZERS_PARALLELISM=false CUDA_VISIBLE_DEVICES=0,1,2,3
trl grpo --accelerate_config multi_gpu --num_processes 4 \
    --model_name_or_path Qwen/Qwen2.5-7B-Instruct \
    --dataset_name trl-lib/DeepMath-103K \
    --reward_funcs accuracy_reward \
    --output_dir out \
    --use_peft --lora_r 16 --lora_alpha 32 \
    --per_device_train_batch_size 4 \
    --num_generations 8 \
    --max_completion_length 2048 \
    --dtype bfloat16 \
    --attn_implementation flash_attention_2 \
    --learning_rate 1e-6 \
    --bf16 true \
    --use_vllm true --vllm_mode colocate \
    --vllm_gpu_memory_utilization 0.35 \
    --vllm_max_model_length=3072
