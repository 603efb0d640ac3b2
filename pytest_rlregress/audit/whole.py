"""All checks of a batch, piece by piece: what concerns tokens at once, what concerns groups at the end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_rlregress.audit import columns
from pytest_rlregress.audit.batch import TokenRows, token_rows
from pytest_rlregress.audit.findings import Finding, later, merged
from pytest_rlregress.audit.rules import CHECKS, GROUP_RULES, TOKEN_RULES, AuditContext, Result, UncheckedReason
from pytest_rlregress.audit.seen import ColumnComparison, SeenRows


@dataclass
class AuditReport:
    """What the checks found.

    Attributes:
        findings: In the order of ``CHECKS``.
        checked: Names of the checks that were made.
        unchecked: Why the others were not.
        rows: Of the batch.
        tokens: That are trained on.
        notes: What was measured and isn't a finding.
    """

    findings: list[Finding] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    unchecked: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    tokens: int = 0
    notes: list[str] = field(default_factory=list)


class Audit:
    """The checks over pieces of one batch.

    Args:
        names: What the batch calls each column, by the names used here.
        ends: Ids of end tokens; none where they are not known.
        skip: Checks that are not to be made.
    """

    def __init__(self, names: Mapping[str, str], ends: Collection[int] = (), skip: Collection[str] = ()) -> None:
        self._context = AuditContext(names, ends)
        self._skip = frozenset(skip)
        self._findings: list[Finding] = []
        self._done: set[str] = set()
        self._unchecked = dict.fromkeys(skip, "--skip")
        self._seen = SeenRows(names)
        self._comparison = ColumnComparison()
        self._rows = self._tokens = 0

    def add(self, values: Mapping[str, Any]) -> TokenRows | None:
        """Check some rows, by the names used here; None where there are no tokens in them.

        Raises:
            BatchError: A column has another shape or dtype than it can have.
        """
        rows = None
        if has_tokens(values):
            of_tokens = {name: one for name, one in values.items() if name != "uid" and not isinstance(one, list)}
            rows = token_rows(of_tokens, self._context.names)
            for name, rule in TOKEN_RULES.items():
                if name not in self._skip:
                    self._take(name, rule(rows, self._context))
            self._comparison.add(rows, self._rows)
            self._tokens += int(rows.mask.sum())
        else:
            for name in TOKEN_RULES:
                self._unchecked.setdefault(name, "there are no tokens in it")
        self._seen.add(rows, values)
        self._rows += len(next(iter(values.values()))) if rows is None else len(rows.mask)
        return rows

    def report(self) -> AuditReport:
        """Return all findings, after the last rows."""
        self._findings = merged(self._findings)
        for name, rule in GROUP_RULES.items():
            if name not in self._skip:
                self._take(name, rule(self._seen, self._context), 0)
        if "shifted" in self._done and not any(one.check == "shifted" for one in self._findings):
            self._findings += self._comparison.unrelated(self._context.names)
        order = list(CHECKS)
        self._findings.sort(key=lambda one: order.index(one.check))
        return AuditReport(
            self._findings,
            [name for name in CHECKS if name in self._done],
            {name: self._unchecked[name] for name in CHECKS if name not in self._done},
            self._rows,
            self._tokens,
            self._comparison.notes(self._context.names),
        )

    def _take(self, name: str, result: Result, start: int | None = None) -> None:
        if isinstance(result, UncheckedReason):
            self._unchecked.setdefault(name, result)
        else:
            self._done.add(name)
            self._findings += later(result, self._rows if start is None else start)


def has_tokens(values: Collection[str]) -> bool:
    """Return whether columns of these names say something of tokens."""
    return bool({"input_ids", "responses", "response_mask", "completion_mask", "attention_mask"} & {*values})


def audit_batch(
    batch: Mapping[str, Any],
    group: Any = None,
    ends: Collection[int] = (),
    mapped: Mapping[str, str] | None = None,
    skip: Collection[str] = (),
) -> list[Finding]:
    """Check a batch in memory, such as between rollout and update of a training loop.

    Args:
        batch: Tensors by their names in verl, TRL or OpenRLHF: a TensorDict or a dict. Left as it is; what isn't a
            tensor with rows is not looked at.
        group: The group of each row, as ``non_tensor_batch["uid"]``; by default rows of one prompt are a group.
        ends: Ids of end tokens; without them the check ``end`` is not made.
        mapped: Columns under other names: ``{"response_mask": "my_mask"}``.
        skip: Names of checks that are not to be made.

    Returns:
        What is wrong, most general first; empty where nothing is.

    Raises:
        BatchError: It cannot be checked: no masks, columns of differing rows, a column of another shape or dtype.
        ValueError: ``skip`` has a name that isn't a check.
    """
    if unknown := set(skip) - CHECKS.keys():
        raise ValueError(f"no check {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}")
    tensors = {str(key): value for key, value in batch.items() if hasattr(value, "dim") and value.dim()}
    if group is not None:
        tensors["uid"] = group
    found = columns.find_columns(tensors, mapped or {})
    columns.same_rows(found, {name: len(value) for name, value in tensors.items()})
    if has_tokens(found):
        columns.needs_masks(found, tensors)
    audit = Audit(found, ends, skip)
    audit.add({name: tensors[column] for name, column in found.items()})
    return audit.report().findings
