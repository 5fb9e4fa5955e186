"""The batch size of an optimizer step in samples and in tokens; None if it is not known.

A loss target has one row per sample, unless the script flattened it: then a row may be a sample
(of a classifier) or a token of one (of a language model). The hooks send ``samples`` where the
graph shows the difference, and a DataLoader's batch size where it produced exactly one batch per
micro-batch.
"""

from __future__ import annotations

from gradledger_monitor.ingest.schema import MicroBatch, StepRecord, Term

_OF_UTTERANCES = "CtcLoss"  # one element for each


def samples_of(micro_batch: MicroBatch, record: StepRecord) -> int | None:
    """Samples of one micro-batch of a rank's record; for a language model these are sequences.

    Known if every loss of the micro-batch has the same number of rows, and these are not flattened,
    or are whole batches of the loader. The chunks of one loss do not show the size of the whole.
    """
    terms = micro_batch.terms
    if len(terms) == 1:
        return _rows(terms[0]) or (_of_loader(terms[0], record) if record.batch_size else None)
    rows = {_rows(term) for term in terms}
    if len(rows) != 1 or _are_chunks(terms):
        return None
    return rows.pop() or _of_loader(terms[0], record)


def tokens_of(micro_batch: MicroBatch) -> int | None:
    """Tokens of one micro-batch that count on its rank; of several losses, those of the largest."""
    if len(micro_batch.terms) == 1:
        return micro_batch.terms[0].tokens
    counts = [term.tokens for term in micro_batch.terms]
    measured = [count for count in counts if count is not None]
    if not measured or len(measured) < len(counts):
        return None
    return sum(measured) if _are_chunks(micro_batch.terms) else max(measured)


def sum_if_complete(counts: list[int | None]) -> int | None:
    """The sum; None if one of the counts is None, or there is no count."""
    result = 0
    for count in counts:
        if count is None:
            return None
        result += count
    return result if counts else None


def _rows(term: Term) -> int | None:
    samples = term.samples or (term.elements if term.kind.startswith(_OF_UTTERANCES) else None)
    if samples:
        return samples
    rows, size = term.rows, term.size
    return rows if rows and size and rows < size else None


def _of_loader(term: Term, record: StepRecord) -> int | None:
    """The loader's batch size, if the flattened target can consist of one batch."""
    size = record.batch_size if record.batches == len(record.micro_batches) else None
    return size if size and term.size and term.size % size == 0 else None


def _are_chunks(terms: list[Term]) -> bool:
    heads = [(term.kind, term.head) for term in terms if term.head is not None]
    return len(set(heads)) < len(heads)


def has_whole_batches(record: StepRecord) -> bool:
    """Whether each of several backwards has the samples of the one batch that was drawn.

    A loop that accumulates draws a batch for each, or has a part of one in each.
    """
    if record.batches != 1 or record.batch_size is None or len(record.micro_batches) == 1:
        return False
    return {samples_of(m, record) for m in record.micro_batches} == {record.batch_size}


def has_a_loader_for_each_loss(record: StepRecord) -> bool:
    """Whether each of several DataLoaders may have delivered an equal share of the micro-batches.

    A loop that starts a loader again has drawn more from it than its iterator counts. One that
    draws more batches than it has micro-batches puts several of them into one.
    """
    drawn, k = record.loader_batches, len(record.micro_batches)
    loaders = len(drawn)
    return loaders > 1 and k % loaders == 0 and max(drawn) * loaders <= k
