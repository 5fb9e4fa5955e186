"""Words that gradledger does not use, each with the standard term: docs/language.md as data."""

from __future__ import annotations

# Nowhere: neither in an identifier nor in a text. Regular expressions over lower-case words.
WORDS = {
    r"told|tells?|telling": "publish, send, log, report; payload, headers, values",
    r"said|says?|saying|sayable": "report, state; result, form, text",
    r"heard|hears?|hearers?|hearing": "subscribe, receive, on_message",
    r"heeds?|heeded": "apply (overrides)",
    r"beats?": "heartbeat",
    r"stretch(es)?": "bucket",
    r"lent|lends?": "grad_tensors given by the caller",
    r"aside": "quarantined",
    r"mends?|mended|mending": "fix",
    r"whoever|whomever|wherein|whereof|thereof|therein|whatsoever": "plain words",
    r"speaks?|speaking|spoke|spoken": "send, compose, refer to",
    r"fates?": "result, delivery outcome",
    r"orphans?": "leftover files",
}

# As words of identifiers only: in a sentence they may be plain English.
PARTS = {
    "judge": "evaluator, evaluate",
    "judges": "evaluators, evaluates",
    "judging": "evaluation",
    "judged": "evaluated",
    "voice": "composer",
    "news": "pubsub, notification",
    "turns": "ingest priority",
    "recall": "restore",
    "notices": "stderr messages",
    "look": "evaluation pass",
    "looks": "evaluation passes",
    "looking": "evaluating, resolving",
}

# As whole identifiers: they do not state what a variable holds.
WHOLE = ("found", "known", "here", "given", "kept", "seen", "made", "place", "told", "said")

# In texts: phrases that are calques, archaic, or a private name of something that has a name.
PHRASES = {
    r"given up": "pruned, abandoned",
    r"gives? up": "prune, stop retrying",
    r"let pass|lets pass": "skip",
    r"the same say": "equal weight",
    r"of its own\b": "own, separate",
    r"all that is": "everything that",
    r"so many": "this many, N",
    r"nobody needs": "not needed",
    r"what becomes? of": "the result of",
    r"what became of": "the result of",
    r"\basks?\b": "request, require, check",
    r"\blies\b|\blie\b": "is, is stored",
    r"\blasts\b": "continues, is ongoing",
    r"thrown away|throws? away": "discarded",
}
