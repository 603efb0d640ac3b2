"""Audit a batch that a trainer is about to train on: plain checks on tensors, and the files that trainers dump.

In a training loop: ``findings = audit_batch(batch.batch, group=batch.non_tensor_batch["uid"])``.
"""

from __future__ import annotations

from pytest_rlregress.audit.batch import BatchError as BatchError
from pytest_rlregress.audit.findings import Finding as Finding
from pytest_rlregress.audit.findings import Place as Place
from pytest_rlregress.audit.whole import audit_batch as audit_batch

__all__ = ["BatchError", "Finding", "Place", "audit_batch"]
