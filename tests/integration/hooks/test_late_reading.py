"""Numbers are read later, in the background: they must be what they were by then."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from gradledger_monitor.model.chart_metrics import chart_metrics
from helpers.training import cross_entropy, recording, tiny_model, tokens, windows


def test_a_running_loss_that_is_summed_in_place_spoils_nothing() -> None:
    """``total = loss.detach(); total += ...`` writes into the first loss itself."""
    model, totals = tiny_model(), list[float]()
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in windows(3):
            total: torch.Tensor | None = None
            for batch in window:
                loss = cross_entropy(model, batch) / len(window)
                loss.backward()
                if total is None:
                    total = loss.detach()
                else:
                    total += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            assert total is not None
            totals.append(float(total))
            total.zero_()
    assert [f.loss_reported for f in recorded.facts()] == pytest.approx(totals, rel=1e-6)


def test_a_clip_norm_that_is_written_over_spoils_nothing() -> None:
    model, norms = tiny_model(), []
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in windows(3):
            count = sum(map(tokens, window))
            for batch in window:
                (cross_entropy(model, batch, reduction="sum") / count).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            norms.append(float(norm))
            norm.zero_()
            optimizer.step()
            optimizer.zero_grad()
    assert min(norms) > 0.01
    assert [chart_metrics(f)["balance"] for f in recorded.facts()] == pytest.approx(
        [1] * 3, rel=1e-3
    )
    assert [chart_metrics(f)["norm"] for f in recorded.facts()] == pytest.approx(
        [0.01] * 3, rel=1e-3
    )


def test_a_scale_that_moves_on_spoils_nothing() -> None:
    model, scales = tiny_model(), []
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1)
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in windows(4):
            scales.append(scaler.get_scale())
            for batch in window:
                scaler.scale(cross_entropy(model, batch) / len(window)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert scales == [64, 128, 256, 512]
    assert [chart_metrics(f)["scale"] for f in recorded.facts()] == scales


def test_labels_that_are_written_over_spoil_nothing() -> None:
    """A loader may hand out one buffer again and again."""
    model = tiny_model()
    data = windows(3)
    counts = [sum(map(tokens, window)) for window in data]
    inputs, labels = torch.empty(2, 9, 8), torch.empty(2, 9, dtype=torch.long)
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window, count in zip(data, counts, strict=True):
            for some, wanted in window:
                inputs.zero_()[:, : some.shape[1]] = some
                labels.fill_(-100)[:, : some.shape[1]] = wanted
                loss = cross_entropy(model, (inputs, labels), reduction="sum") / count
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            labels.fill_(-100)
    assert [chart_metrics(f)["tokens"] for f in recorded.facts()] == counts
    assert [chart_metrics(f)["balance"] for f in recorded.facts()] == pytest.approx(
        [1] * 3, rel=1e-3
    )


def test_gradients_that_are_written_over_spoil_nothing() -> None:
    model = tiny_model()
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in windows(3):
            count = sum(map(tokens, window))
            optimizer.zero_grad(set_to_none=False)
            for batch in window:
                (cross_entropy(model, batch, reduction="sum")).backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.div_(count)
            optimizer.step()
    assert [chart_metrics(f)["balance"] for f in recorded.facts()] == pytest.approx(
        [1] * 3, rel=1e-3
    )


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_step_inside_backward_is_read_when_the_backward_has_ended(interrupted: bool) -> None:
    """The collectives of a backward are counted at its end."""
    model, optimizers = tiny_model(), dict[torch.Tensor, torch.optim.Optimizer]()
    read_inside: list[bool] = []

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()
        read_inside.append(recorded.steps[-1].ready)
        if interrupted:
            raise RuntimeError("the program's own")

    with recording() as recorded:
        for parameter in model.parameters():
            optimizers[parameter] = torch.optim.SGD([parameter], lr=0.1)
            parameter.register_post_accumulate_grad_hook(step)
        for window in windows(2):
            loss = cross_entropy(model, window[0])
            with pytest.raises(RuntimeError, match="own") if interrupted else nullcontext():
                loss.backward()
            assert all(record.ready for record in recorded.steps)
    assert read_inside and not any(read_inside)
    assert all(record.resolve().micro_batches[0].backward_ms for record in recorded.steps) is (
        not interrupted
    )
