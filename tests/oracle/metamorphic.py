"""Changes of a program that must not change its answer, for programs whose truth is not computed.

    python -m oracle.metamorphic [N] [--seed SEED]

Each relation changes the text of a script, generated or not. Run from ``tests/``; the exit status
is 1 if a relation does not hold for a generated program.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.facts import judged
from museum.evaluation import facts_of
from museum.stage import Stage
from oracle.drawing import draw
from oracle.outcome import SEVERE
from oracle.writing import script

TARGET = r"^(\s*)(loss|\(.*\))\.backward\(\)"  # of a backward without a scaler
PENALTY = "0.001 * sum(p.square().sum() for p in model.parameters())"


@dataclass(frozen=True)
class Relation:
    """``replacements`` are pairs of a pattern and its replacement; each may occur or not."""

    name: str
    replacements: tuple[tuple[str, str], ...]
    only: str  # choices of the generated programs for which it must hold
    may_find_more: bool = False  # else the answer stays the same; a finding never becomes none

    def changed(self, text: str) -> str:
        """The script after the change. Raises ValueError if nothing of it can be changed."""
        changed = text
        for pattern, replacement in self.replacements:
            changed = re.sub(pattern, replacement, changed, flags=re.MULTILINE)
        if changed == text:
            raise ValueError(f"{self.name}: no part of the script matches")
        return changed


RELATIONS = [
    Relation(
        "the micro-batches of a window in another order",
        (
            (r"in window(?=[:\]])", "in window[::-1]"),
            (r"enumerate\(window\b", "enumerate(window[::-1]"),
        ),
        "loop:windows/function/counter/modulo/tail,optimizers:one/two,layout:one/ddp/all_reduce",
    ),
    Relation(
        # not of programs whose mistake is a factor: it is recognised by its size
        "a constant moved from the loss to the learning rate",
        (
            (r"\blr=([\d.e-]+)", r"lr=\1 / 0.7"),
            (r"scaler\.scale\(loss\)", "scaler.scale(0.7 * loss)"),
            (TARGET, r"\1(0.7 * \2).backward()"),
        ),
        "loop:windows/function/counter/modulo/tail,normalisation:window/share/mean_k,mistake:none,"
        "data:equal/unequal,ranks_count:each/all,all_reduce:after_window,optimizers:one/two,"
        "layout:one/ddp/all_reduce/fsdp2/hsdp",
    ),
    Relation(
        "two micro-batches of twice the rows instead of four",
        (
            (r"^K = 4$", "K = 2"),
            (
                r"(?=^class Net)",
                "windows = [\n"
                "    [tuple(map(torch.cat, zip(*pair))) for pair in (window[:2], window[2:])]\n"
                "    for window in windows\n"
                "]\n\n\n",
            ),
        ),
        "loop:windows/function/counter/modulo/tail,normalisation:window,accumulation:4,"
        "objective:cross_entropy/log_probs/smoothed/squared_error/binary,data:equal/unequal",
    ),
    Relation(
        "the data of two ranks swapped",
        (
            (
                r"dist\.get_rank\(\), dist\.get_world_size\(\)",
                "1 - dist.get_rank(), dist.get_world_size()",
            ),
            (r"seed=rank\b", "seed=1 - rank"),
        ),
        "layout:ddp/all_reduce/fsdp2",
    ),
    Relation(
        "an unrelated auxiliary loss",
        (
            (r"scaler\.scale\(loss\)", f"scaler.scale(loss + {PENALTY})"),
            (TARGET, rf"\1(\2 + {PENALTY}).backward()"),
        ),
        "loop:windows/function/counter/modulo/tail,layout:one/ddp/all_reduce",
        may_find_more=True,
    ),
]


@dataclass(frozen=True)
class Answer:
    """The verdict, and the rules of the findings at warning or above that nothing inhibits."""

    verdict: str
    findings: frozenset[str]


def answer(stage: Stage, text: str, ranks: int = 1) -> Answer:
    """Of a script. Raises RuntimeError with its output if it fails."""
    with tempfile.TemporaryDirectory(prefix="gl-oracle-") as folder:
        path = Path(folder) / "program.py"
        path.write_text(text)
        played = stage.play(path, ranks, "records")
    if played.failed:
        raise RuntimeError(played.printed.strip())
    evaluation = judged(facts_of(played.recorded))
    causes = [f for f in evaluation.findings if f.inhibited_by is None and f.severity in SEVERE]
    return Answer(evaluation.verdict, frozenset(finding.rule for finding in causes))


def violation(stage: Stage, relation: Relation, text: str, ranks: int = 1) -> str:
    """How the answer changes that should not, or nothing."""
    before = answer(stage, text, ranks)
    after = answer(stage, relation.changed(text), ranks)
    if after == before or (relation.may_find_more and (after.findings or not before.findings)):
        return ""
    return f"{_text(before)}; after: {_text(after)}"


def _text(answer: Answer) -> str:
    return f"{answer.verdict} ({', '.join(sorted(answer.findings)) or 'no finding'})"


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("programs", type=int, nargs="?", default=20, help="for each relation")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    stage, violations = Stage(), 0
    for relation in RELATIONS:
        for program in itertools.islice(draw(options.seed, relation.only), options.programs):
            text = script(program)
            if why := violation(stage, relation, text, program.ranks):
                violations += 1
                sys.stdout.write(f"{relation.name}: {why}\n    {text.splitlines()[0]}\n")
    stage.close()
    total = options.programs * len(RELATIONS)
    sys.stdout.write(f"{violations} of {total} relations do not hold\n")
    return violations > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
