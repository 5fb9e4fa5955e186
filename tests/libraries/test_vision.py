"""Losses of timm in its loop, and the detection training of ultralytics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.training import Recording, recording
from libraries.torchvision_import import import_torchvision
from libraries.watched import Steps, Watched

import_torchvision()
timm_loss = pytest.importorskip("timm.loss")
Mixup = pytest.importorskip("timm.data.mixup").Mixup

UNEVEN, MISSING = "reduction.token_weights_unequal", "reduction.missing_division"
CLASSES, STEPS = 5, 3
EVEN, SIZES = (4, 4, 4, 4), (4, 2, 6, 4)

Loss = Callable[[Tensor, Tensor], Tensor]


def classifier(
    loss: Loss, sizes: Sequence[int], mix: bool = False, divided: bool = True
) -> Watched:
    """Train a small classifier on random images, with accumulation."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=CLASSES)
    steps, windows = Steps(model), []
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        steps.attach(optimizer)
        for _ in range(STEPS):
            window = []
            for size in sizes:
                images, labels = torch.randn(size, 3, 8, 8), torch.randint(0, CLASSES, (size,))
                window.append(mixup(images, labels) if mix else (images, labels))
                value = loss(model(window[-1][0]), window[-1][1])
                (value / len(sizes) if divided else value).backward()
            optimizer.step()
            optimizer.zero_grad()
            windows.append(window)

    def whole(images: Tensor, targets: Tensor) -> Tensor:
        return loss(model(images), targets)

    watched = Watched(recorded)
    for step, window in enumerate(windows):
        images, targets = (torch.cat(parts) for parts in zip(*window, strict=True))
        watched.truth.append(steps.compare(step, partial(whole, images, targets)))
    return watched


def multi_label(logits: Tensor, labels: Tensor) -> Tensor:
    result: Tensor = timm_loss.AsymmetricLossMultiLabel()(
        logits, F.one_hot(labels, CLASSES).float()
    )
    return result


LOSSES: dict[str, tuple[Loss, bool]] = {
    "mixup": (timm_loss.SoftTargetCrossEntropy(), True),
    "label smoothing": (timm_loss.LabelSmoothingCrossEntropy(0.1), False),
    "binary": (timm_loss.BinaryCrossEntropy(), False),
    "binary, mixup": (timm_loss.BinaryCrossEntropy(smoothing=0.0), True),
    "binary, sum over classes": (timm_loss.BinaryCrossEntropy(sum_classes=True), False),
    "asymmetric": (timm_loss.AsymmetricLossSingleLabel(), False),
}
# Sums over classes: if the division is wrong, the unit that is meant is not known.
NAMED = {name: loss for name, loss in LOSSES.items() if "sum over classes" not in name}
by_loss = pytest.mark.parametrize(("loss", "mix"), NAMED.values(), ids=list(NAMED))


@pytest.mark.parametrize(("loss", "mix"), LOSSES.values(), ids=list(LOSSES))
def test_losses_of_timm_are_right(loss: Loss, mix: bool) -> None:
    watched = classifier(loss, EVEN, mix)
    assert watched.answer == ("balanced", [])
    assert all(truth.is_true() for truth in watched.truth)


@by_loss
def test_a_missing_division_is_named(loss: Loss, mix: bool) -> None:
    watched = classifier(loss, EVEN, mix, divided=False)
    assert watched.answer[1] == [MISSING]
    assert [truth.factor for truth in watched.truth] == [pytest.approx(4)] * STEPS


@by_loss
def test_images_of_unequal_micro_batches_have_unequal_weights(loss: Loss, mix: bool) -> None:
    watched = classifier(loss, SIZES, mix)
    assert watched.answer[1] == [UNEVEN]
    assert list(watched.balances().values()) == [pytest.approx(1)]
    assert all(truth.deviation > 0.1 for truth in watched.truth)


# ---------------------------------------------------------------------- ultralytics


def images_of_squares(folder: Path) -> Path:
    """A data set for detection: noise, with made-up boxes."""
    cv2 = pytest.importorskip("cv2")
    made = np.random.default_rng(0)
    for part, count in (("train", 24), ("val", 2)):
        for kind in ("images", "labels"):
            (folder / kind / part).mkdir(parents=True)
        for number in range(count):
            noise = made.integers(0, 255, (64, 64, 3), dtype=np.uint8)
            cv2.imwrite(str(folder / "images" / part / f"{number}.png"), noise)
            boxes = [
                f"{made.integers(0, 2)} {' '.join(f'{v:.3f}' for v in made.uniform(0.2, 0.7, 4))}"
                for _ in range(made.integers(1, 6))
            ]
            (folder / "labels" / part / f"{number}.txt").write_text("\n".join(boxes))
    data = folder / "data.yaml"
    data.write_text(
        f"path: {folder}\ntrain: images/train\nval: images/val\nnames: {{0: a, 1: b}}\n"
    )
    return data


@pytest.mark.parametrize("warmup_epochs", [0, 1])
def test_a_detector_and_its_ramp_of_accumulation_are_left_alone(
    tmp_path: Path, warmup_epochs: int
) -> None:
    """Three losses are assigned to one vector, and divided by the scores of a micro-batch."""
    ultralytics = pytest.importorskip("ultralytics")
    detect = pytest.importorskip("ultralytics.models.yolo.detect")

    class WithoutValidation(detect.DetectionTrainer):  # type: ignore[misc, name-defined]
        def validate(self) -> tuple[dict[str, float], float]:
            return {}, 0.0

        def final_eval(self) -> None:
            pass

    with recording(Recording()) as recorded:
        ultralytics.YOLO("yolov8n.yaml", verbose=False).train(
            trainer=WithoutValidation, data=str(images_of_squares(tmp_path)), imgsz=64, epochs=2,
            batch=2, nbs=8, workers=0, val=False, plots=False, save=False, device="cpu", amp=False,
            project=str(tmp_path), optimizer="SGD", verbose=False, warmup_epochs=warmup_epochs,
        )  # fmt: skip
    evaluation = recorded.evaluation()
    loud = [finding.rule for finding in evaluation.findings if finding.severity != "info"]
    assert (loud, evaluation.verdict) == ([], "incomplete")
    names = [objective.name for objective in recorded.facts()[-1].objectives]
    assert len(names) == 3
