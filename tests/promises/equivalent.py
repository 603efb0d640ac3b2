"""Broken remedies that are as good as the whole one, each with the reason: no guard can fail for them."""

from __future__ import annotations

#: (subject, name of the promise): why.
EQUIVALENT: dict[tuple[str, str], str] = {
    ("fingerprinted_state", "alters-last"): "another fingerprint, but of equal rows the same: it is compared alone",
    ("math_scores", "alters-last"): "a reason that nobody parses, with a letter more",
    ("predict_training_memory", "alters-last"): "a byte more",
    ("request_seed", "alters-last"): "every seed one higher: as far from each other, the same each time",
}
