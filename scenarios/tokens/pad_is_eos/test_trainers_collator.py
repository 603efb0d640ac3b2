"""The batch that transformers' Trainer makes with the collator that the remedy names."""

import pytest

from pytest_rlregress.failures.act import act

ANSWERS = ["It is 4.", "About half a million people.", "No."]
FAMILY = "deepseek-r1-distill"  # whose pad_token is its eos_token


@pytest.mark.guards("pad-is-eos")
@pytest.mark.needs("datasets")
def test_labels_of_its_own_keep_the_end_of_the_turn(tiny_qwen, tmp_path):
    from datasets import Dataset
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

    tokenizer = tiny_qwen.tokenizer(FAMILY)
    rows = [[*tokenizer.encode(answer), tokenizer.eos_token_id] for answer in ANSWERS]
    trainer = Trainer(
        tiny_qwen.model(),
        TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", per_device_train_batch_size=len(rows)),
        data_collator=DataCollatorForSeq2Seq(tokenizer),
        train_dataset=Dataset.from_list([{"input_ids": row, "labels": row} for row in rows]),
    )
    with act():
        batch = next(iter(trainer.get_train_dataloader()))
        loss = trainer.compute_loss(trainer.model, dict(batch))
    assert sorted([token for token in row if token != -100] for row in batch["labels"].tolist()) == sorted(rows)
    assert loss.isfinite()
