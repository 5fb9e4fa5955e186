"""How large the batch of an optimizer step is, in samples and in tokens; None where not known.

A loss's target has one row for each sample, unless the script flattened it: then a row may be a
sample (a classifier's) or a token of one (a language model's). The hooks tell where the graph does,
and a DataLoader tells where it gave one batch for each micro-batch.
"""

from __future__ import annotations

from gradledger_monitor.ingest.schema import MicroBatch, StepRecord, Term


def samples_of(micro_batch: MicroBatch, record: StepRecord) -> int | None:
    """Samples of one micro-batch of a rank's record; for a language model these are sequences.

    Known where every loss of the micro-batch shows as many rows, and where these are not flat, or
    are whole batches of the loader. The chunks of one loss say nothing of the whole.
    """
    terms = micro_batch.terms
    if len(terms) == 1:
        return _rows(terms[0]) or (_of_loader(terms[0], record) if record.batch_size else None)
    rows = {_rows(term) for term in terms}
    if len(rows) != 1 or _in_chunks(terms):
        return None
    return rows.pop() or _of_loader(terms[0], record)


def tokens_of(micro_batch: MicroBatch) -> int | None:
    """Tokens of one micro-batch that count on its rank; of several losses, those of the largest."""
    if len(micro_batch.terms) == 1:
        return micro_batch.terms[0].tokens
    counts = [term.tokens for term in micro_batch.terms]
    known = [count for count in counts if count is not None]
    if not known or len(known) < len(counts):
        return None
    return sum(known) if _in_chunks(micro_batch.terms) else max(known)


def whole(parts: list[int | None]) -> int | None:
    """The sum, where every part is known and there is one."""
    known = 0
    for part in parts:
        if part is None:
            return None
        known += part
    return known if parts else None


def _rows(term: Term) -> int | None:
    samples = term.samples
    if samples:
        return samples
    rows, size = term.rows, term.size
    return rows if rows and size and rows < size else None


def _of_loader(term: Term, record: StepRecord) -> int | None:
    """What the loader put into each batch, if the flat target can be made of one of them."""
    size = record.batch_size if record.batches == len(record.micro_batches) else None
    return size if size and term.size and term.size % size == 0 else None


def _in_chunks(terms: list[Term]) -> bool:
    heads = [(term.kind, term.head) for term in terms if term.head is not None]
    return len(set(heads)) < len(heads)
