"""The text of a micro-batch's forward pass and loss: ``outputs`` and ``loss``."""

from __future__ import annotations

from oracle.objectives import AUXILIARIES, OBJECTIVES, PENALTY
from oracle.program import DIVIDING, Program
from oracle.writing import layouts


def forward_and_loss(p: Program, result: str = "") -> list[str]:
    """Lines up to ``loss``; or up to the whole, which is not normalised, as ``result``."""
    mean, total = _mean_and_total(p)
    if p.compile != "loss":
        return [*_forward(p), *loss_lines(p)]
    if not result:
        return [f"loss = {_normalised(p, 'loss_of(batch)', 'loss_of(batch)')}"]
    divided = p.normalisation in ("mean_k", "never", "twice", "share")
    return [*_forward(p), *_setup(p), f"{result} = {mean if divided else total}"]


def loss_lines(p: Program) -> list[str]:
    """Lines from ``outputs`` to ``loss``."""
    mean, total = _mean_and_total(p)
    return [*_setup(p), f"loss = {_normalised(p, mean, total)}"]


def _forward(p: Program) -> list[str]:
    called = "net(features)" if p.compile == "loss" else "model(features)"
    if p.checkpointing != "none":
        called = "checkpoint(model, features, use_reentrant=False)"
    outputs = "outputs, second" if "second_head" in p.auxiliaries else "outputs"
    if p.in_half:
        return [
            f'with torch.autocast("cpu", dtype=torch.{p.precision}):',
            f"    {outputs} = {called}",
            *([f"{name} = {name}.float()" for name in outputs.split(", ")]),
        ]
    return [f"{outputs} = {called}"]


def _setup(p: Program) -> list[str]:
    setup = OBJECTIVES[p.objective].setup.strip("\n")
    lines = setup.splitlines() if setup else []
    if p.normalisation == "sequence":
        lines.append(_rows(p))
    return lines


def _rows(p: Program) -> str:
    if OBJECTIVES[p.objective].batch != "sentences":
        return 'rows = F.cross_entropy(outputs, labels, reduction="none")'
    entropy = 'F.cross_entropy(outputs.transpose(1, 2), labels, reduction="none")'
    return f"rows = {entropy}.sum(1) / (labels != -100).sum(1)"


def _mean_and_total(p: Program) -> tuple[str, str]:
    """Of the objective with those of its further terms that have as many elements."""
    objective = OBJECTIVES[p.objective]
    mean = "rows.mean()" if p.normalisation == "sequence" else objective.mean
    mean += " / K" * (p.normalisation == "terms_never")
    total = objective.total
    valid = "[labels != -100]" if objective.batch == "sentences" else ""
    names = {
        "z": f"outputs{valid}.logsumexp(-1).square()",
        "second": f"second{valid}",
        "labels": f"labels{valid}",
    }
    for term in p.auxiliaries:
        if term in AUXILIARIES:
            of_mean, of_total = AUXILIARIES[term]
            mean += f" + {of_mean.format(**names)}"
            total += f" + {of_total.format(**names)}"
    return mean, total


def _normalised(p: Program, mean: str, total: str) -> str:
    penalty = PENALTY if "penalty" in p.auxiliaries else ""
    if p.normalisation in ("mean_k", "never", "twice", "terms_never", "sequence"):
        both = f"{mean} + {penalty}" if penalty else mean
        divided = {"never": "", "terms_never": "", "twice": " / K / K"}.get(p.normalisation, " / K")
        if p.divides:
            divided = divided.removesuffix(" / K")
        return f"({both}){divided}" if divided else both
    text = {
        "share": f"({mean}) * ({OBJECTIVES[p.objective].count} / counts[w])",
        "stale_count": f"({total}) / counts[0]",
        "after_backward": total,
        "sum": total,
    }.get(p.normalisation, f"({total}) / counts[w]")
    if p.normalisation in ("share", "window"):
        text += layouts.factor(p) + " * K" * (p.loop in DIVIDING)
    if not penalty:
        return text
    again = " * counts[w]" if p.normalisation == "after_backward" else ""
    return f"{text} + {penalty} / len(windows[w]){again}"
