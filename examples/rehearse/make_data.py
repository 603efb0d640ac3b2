"""Write a data set of sums for grpo.yaml: 500 rows."""

import json
import random
from pathlib import Path

random.seed(0)
rows = []
for _ in range(500):
    one, other = random.randrange(1000), random.randrange(1000)
    chat = [{"role": "user", "content": f"What is {one} + {other}?"}]
    rows.append({"prompt": chat, "answer": str(one + other)})
Path("data").mkdir(exist_ok=True)
Path("data/train.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
