"""Write a data set of 500 sums for grpo.yaml, and a model, which is tiny here."""

import json
import random
import shutil
from pathlib import Path

from pytest_rlregress.fixtures.tiny_model import build

random.seed(0)
rows = []
for _ in range(500):
    one, other = random.randrange(1000), random.randrange(1000)
    chat = [{"role": "user", "content": f"What is {one} + {other}?"}]
    rows.append({"prompt": chat, "answer": str(one + other)})
Path("data").mkdir(exist_ok=True)
Path("data/train.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
shutil.copytree(build("qwen2").directory, "model", dirs_exist_ok=True)
