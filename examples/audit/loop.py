"""Stop before a step that would train on a broken batch."""

from verl import DataProto

from pytest_rlregress.audit import audit_batch

batch = DataProto.load_from_disk("broken.pkl")
findings = audit_batch(
    batch.batch,
    group=batch.non_tensor_batch["uid"],
    ends=batch.meta_info["eos_token_id"],
    skip=["group-spread"],
)
for finding in findings:
    print(finding.check, finding.column, [(place.row, place.token) for place in finding.places])
