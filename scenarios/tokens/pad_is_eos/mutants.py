from mutants import broken, fails, replaces
from pytest_rlregress.remedies.tokens import padded_batch


@broken(only="test_trained_to_stop")
def labels_by_id(rows, pad_token_id):
    batch = padded_batch(rows, pad_token_id)
    batch["labels"] = batch["input_ids"].masked_fill(batch["input_ids"] == pad_token_id, -100)
    return batch


@broken(only="test_rows_padded")
def attention_by_id(rows, pad_token_id):
    batch = padded_batch(rows, pad_token_id)
    return {**batch, "attention_mask": (batch["input_ids"] != pad_token_id).long()}


@replaces("absent", "transformers.DataCollatorForLanguageModeling.__call__")
def collator_masks_by_length(self, features):
    return padded_batch([feature["input_ids"] for feature in features], self.tokenizer.pad_token_id)


replaces("changed", "transformers.DataCollatorForLanguageModeling.__call__", only="test_end_of_turn")(fails)


@replaces("regressed", "transformers.DataCollatorForSeq2Seq.__call__", only="test_labels_of_its_own")
def own_labels_are_masked_by_id(original, self, features, **options):
    batch = original(self, features, **options)
    batch["labels"] = batch["input_ids"].masked_fill(batch["input_ids"] == self.tokenizer.pad_token_id, -100)
    return batch
