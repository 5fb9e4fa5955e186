"""Changes of a script as text: a unified diff where it is certain to apply (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from gradledger_monitor.model.code.statements import REMOVED
from gradledger_monitor.model.findings import CHANGE_AT

MOST_COLUMNS = 240  # the hooks cut a line there
_FILE = re.compile(r"[\w.-]+(?:/[\w.-]+)*", re.ASCII)  # no cell, and no path outside the folder
_EXACT = re.compile(r"[\t -~]*")  # of one byte in any encoding, and in a terminal as in the file


@dataclass(frozen=True)
class Change:
    """Lines of one file, from the number ``first`` on, before and after."""

    first: int
    before: list[str]
    after: list[str]


def diff(file: str, change: Change, recorded: Mapping[int, str]) -> str:
    """The smallest hunk, with at least one line of the script.

    ``recorded`` are lines as they are in the file. If they do not prove that ``patch`` and
    ``git apply`` accept the hunk, it has no header.
    """
    before, after, first = change.before, change.after, change.first
    while len(before) > 1 and len(after) > 1 and before[0] == after[0]:
        before, after, first = before[1:], after[1:], first + 1
    whole = [recorded.get(number, "\r") for number in range(first, first + len(before))]
    hunk: list[str] = []
    for tag, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            hunk += [f" {line}" for line in whole[a:b]]
        else:
            hunk += [f"-{line}" for line in whole[a:b]] + [f"+{line}" for line in after[c:d]]
    ends = first + len(before) in recorded  # if no line follows, it may have no line end
    is_exact = REMOVED not in "".join(hunk) and all(
        _EXACT.fullmatch(line) and len(line) <= MOST_COLUMNS for line in hunk
    )
    if not (ends and is_exact and _FILE.fullmatch(file)):
        return "\n".join([f"{CHANGE_AT} {first} of {file}:", *map(str.rstrip, hunk)])
    spans = [f"{first},{len(each)}" if len(each) > 1 else str(first) for each in (before, after)]
    head = [f"--- a/{file}", f"+++ b/{file}", f"@@ -{spans[0]} +{spans[1]} @@"]
    return "\n".join([*head, *hunk])
