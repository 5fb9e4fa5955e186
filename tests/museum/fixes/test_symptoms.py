"""A finding is muted as a symptom only if it is gone when its cause is gone.

Each incident that may mute others runs with a second mistake that is not a consequence of the
first: a mean of unequal micro-batches, or no division by K; or one that suits it. Its twin, in
which the cause is corrected, gets the same second mistake. What the cause muted must not be found
there. That no warning is found in the twin alone is shown by the museum itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gradledger_monitor.model.findings import Finding
from gradledger_monitor.rules.docs import rules_by_id
from helpers.facts import judged
from museum.evaluation import facts_of
from museum.labels import Piece, collection
from museum.stage import Stage

SECOND = {
    "unequal micro-batches": {
        ", lengths=EVEN": "",
        ", EVEN)": ")",
        "points([24]": "points([16, 8]",
    },
    "not divided": {" / len(window)": ""},
}
TINY_LIMIT = {
    "range(6)": "range(220)",
    **dict.fromkeys(("text(5,", "text(6,", "text(8,"), "text(220,"),
    **dict.fromkeys(("max_norm = 0.1", "max_norm = 0.2", "max_norm = 1.0"), "max_norm = 1e-4"),
}
FADING = {"model(x)": "(0.9**step * model(x) + (1 - 0.9**step) * model(x).detach())"}
# One batch whose norm is far above all others, long before the cause. Its step changes nothing.
OUTLIER = " * (1e4 if step == 20 else 1)"
OUTLIER_LATER = {
    "range(8)": "range(50)",
    "range(12)": "range(50)",
    "step == 5": "step == 40",
    "step == 7": "step == 40",
    "    optimizer.step()": (
        '    optimizer.param_groups[0]["lr"] = 0.05 * (step != 20)\n    optimizer.step()'
    ),
}
# Mistakes that suit one incident: they remain in its twin, and so must not be muted.
SUITED: dict[tuple[str, str], dict[str, str]] = {
    ("clip/clipped_after_the_step", "tiny limit"): TINY_LIMIT,
    ("clip/clipped_before_division", "tiny limit"): TINY_LIMIT,
    ("loop/clipped_every_microbatch", "tiny limit"): TINY_LIMIT,
    ("scaler/clip_before_unscale_sgd", "tiny limit"): TINY_LIMIT,
    ("scaler/step_bypassed", "clipped while scaled"): {
        "    scaler.step(optimizer)": (
            "    torch.nn.utils.clip_grad_norm_(model.head.parameters(), 0.1)\n"
            "    scaler.step(optimizer)"
        )
    },
    ("ddp/uneven_microbatches", "over the world size"): {
        "* 2 / tokens": "/ tokens",
        "/ len(window)\n": "/ len(window) / 2\n",
    },
    ("ddp/uneven_microbatches", "times the world size"): {
        "* 2 / tokens": "* 4 / tokens",
        "/ len(window)\n": "/ len(window) * 2\n",
    },
    ("ddp/all_under_no_sync", "over the world size"): {"/ len(window)": "/ len(window) / 2"},
    ("ddp/all_under_no_sync", "uneven"): {
        "lengths=EVEN": "lengths=EVEN if rank else [EVEN[0][:3]]"
    },
    ("schedule/warmup_in_epochs", "fading gradient"): {
        "for _ in range(50):\n": "for step in range(_epoch * 200, _epoch * 200 + 200):\n",
        **FADING,
    },
    ("norm/decay_of_adamw_given_to_adam", "fading gradient"): {"for _ in": "for step in", **FADING},
    ("loss/rate_in_percent", "outlier"): {
        "labels)\n    loss": f"labels){OUTLIER}\n    loss",
        "= 0.1 if": "= 0.1 * (step != 20) if",
    },
    ("norm/rate_beyond_the_stable_limit", "outlier"): {
        "curvature)\n\n": 'curvature)\nrate = optimizer.defaults["lr"]\n\n',
        "for _ in range(60):\n": (
            "for step in range(90):\n"
            '    optimizer.param_groups[0]["lr"] = (step != 20) * rate / (1 if step > 40 else 8)\n'
        ),
        "mse_loss(model(x), y)": f"(mse_loss(model(x), y){OUTLIER})",
    },
    ("loss/empty_mask", "outlier"): {
        "    loss.backward()": f"    (loss{OUTLIER}).backward()",
        **OUTLIER_LATER,
    },
    ("norm/root_of_zero", "outlier"): {
        ".mean().backward": f".mean().mul({OUTLIER[3:]}).backward",
        **OUTLIER_LATER,
    },
    ("loss/prompts_fill_the_sequence", "layer not called"): {
        "AdamW(model.parameters()": "AdamW([*model.parameters(), torch.nn.Parameter(torch.ones(3))]"
    },
    ("norm/sigmoid_in_every_layer", "layer not called"): {
        "SGD(model.named_parameters()": (
            'SGD([*model.named_parameters(), ("unused", nn.Parameter(torch.ones(3)))]'
        )
    },
    ("norm/initial_weights_too_small", "layer not called"): {
        "SGD(model.parameters()": "SGD([*model.parameters(), nn.Parameter(torch.ones(3))]"
    },
    ("loop/never_zeroed", "part without gradient"): {
        "criterion(out, target)": "(criterion(out, target) + (out.detach() ** 2).mean())",
        "range(8)": "range(30)",
    },
    ("loop/never_zeroed", "layer not called"): {
        "Adam(model.parameters()": "Adam([*model.parameters(), nn.Parameter(torch.ones(3))]",
        "range(8)": "range(30)",
    },
    ("scaler/clip_before_unscale_sgd", "layer not called"): {
        "SGD(model.parameters()": "SGD([*model.parameters(), torch.nn.Parameter(torch.ones(3))]",
        "text(8,": "text(30,",
    },
    ("loop/never_zeroed", "larger batches"): {
        "[24]": "[24] * (1 if step < 20 else 3)",
        "range(8)": "range(60)",
    },
    ("loop/never_zeroed", "weight of a quarter"): {
        "criterion(out, target).backward()": "(criterion(out, target) / 4).backward()"
    },
    ("loop/zeroed_after_backward", "summed"): {"(x), y)": '(x), y, reduction="sum")'},
    ("loop/parameters_of_a_copy", "summed"): {"(x), y)": '(x), y, reduction="sum")'},
    ("reduction/not_divided", "weight of three"): {".backward()": ".backward(torch.tensor(3.0))"},
    ("reduction/padding_counts", "weight of three"): {
        "nll.mean()": "nll.mean() * 3",
        "nll.sum()": "nll.sum() * 3",
    },
    ("reduction/tail_leaks_into_next_epoch", "larger batches"): {
        "range(4)": "range(16)",
        "images)": "[x.repeat(3, 1) for x in images] if _ > 5 else images)",
    },
}


CAUSES = [
    piece
    for piece in collection()
    if piece.kind == "incident"
    and (rules_by_id()[piece.label.expected].inhibits or piece.name in {name for name, _ in SUITED})
]


def source(piece: Piece, suffix: str, second: str | None = None) -> str:
    """The incident or its twin, with a second mistake if one is named."""
    text = piece.script.with_name(f"{piece.script.stem}{suffix}.py").read_text()
    changes = SUITED.get((piece.name, second), SECOND.get(second)) if second else None
    for right, wrong in (changes or {}).items():
        text = text.replace(right, wrong)
    return text


CASES = [
    (piece, second)
    for piece in CAUSES
    for second in (*SECOND, *(second for name, second in SUITED if name == piece.name))
    if all(source(piece, suffix, second) != source(piece, suffix) for suffix in ("", "_fixed"))
]


@pytest.mark.parametrize(
    ("piece", "second"), CASES, ids=[f"{piece.name}-{second}" for piece, second in CASES]
)
def test_what_a_cause_mutes_is_gone_without_the_cause(
    stage: Stage, piece: Piece, second: str, tmp_path: Path
) -> None:
    script = tmp_path / piece.script.name
    script.write_text(source(piece, "", second))
    muted = {f.rule for f in findings(stage, script, piece.ranks) if f.inhibited_by}
    script.write_text(source(piece, "_fixed", second))
    remaining = {f.rule for f in findings(stage, script, piece.ranks)}
    assert not muted & remaining


def test_every_suited_mistake_is_a_case() -> None:
    cases = {(piece.name, second) for piece, second in CASES}
    assert SUITED.keys() <= cases


def findings(stage: Stage, script: Path, ranks: int) -> list[Finding]:
    """All findings of a script."""
    played = stage.play(script, ranks)
    assert not played.failed, played.printed
    return judged(facts_of(played.recorded)).findings
