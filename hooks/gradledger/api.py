"""``gradledger.watch``: the hooks switched on from inside a training script."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal, TypeVar

from gradledger import arguments, guard
from gradledger.on_finding import OnFinding, policy
from gradledger.session import Contract, Session, Settings, start
from gradledger.settings import balance, service_url, tagged
from gradledger.settings import overhead as allowed

T = TypeVar("T")


class Ledger:
    """A watched run; a context manager, closed at the latest when the process ends."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def log_eval(self, step: int, /, **values: float) -> None:
        """Report evaluation metrics at an optimizer step, e.g. ``log_eval(100, loss=2.1)``.

        What is no single number is left out, with a message.
        """
        self._session.log_eval(step, values)

    def checkpoint(self, path: object = "", /, *, step: int | None = None) -> None:
        """Say that a checkpoint was saved: after the last optimizer step, unless ``step`` is given.

        A post-mortem then names the last good one. ``path`` is for people to find it by.
        """
        self._session.checkpoint(step, path)

    def micro_batch(
        self, *, tokens: Any, reduction: Literal["mean", "sum"], scale: float = 1.0
    ) -> None:
        """Declare the loss of the next backward, where it cannot be seen: compiled, or custom.

        That loss is ``scale`` times the mean or the sum over ``tokens`` tokens (a number, or a
        tensor that is on its way). It is the value that leaves the hidden part: a compiled graph
        or a custom autograd function; whatever the script does to it afterwards is seen. Where
        the graph has no such part, it is the value that ``backward`` is called on.

        With g the gradient that arrives there, a token's weight is then ``scale * g / tokens``
        for a mean and ``scale * g`` for a sum.
        """
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction must be mean or sum, not {reduction!r}")
        with guard.fail_open("ledger.micro_batch"):
            self._session.recorder.losses.declare(tokens, reduction, scale)

    def pause(self) -> None:
        """Take the hooks out until ``resume``, between two steps: what runs now is not training."""
        self._session.recorder.uninstall()

    def resume(self) -> None:
        """Put them back. What a window held when it was paused is forgotten."""
        with guard.fail_open("ledger.resume"):
            self._session.recorder.resume()

    def close(self) -> None:
        """Remove every hook and deliver what is left."""
        self._session.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _named(argument: str, read: Callable[[Any], T], value: Any) -> T:
    """What ``read`` makes of the value of an argument; its ValueError names the argument."""
    try:
        return read(value)
    except ValueError as error:
        raise ValueError(f"{argument}={value!r}: {error}") from error


def watch(
    model: Any = None,
    optimizer: Any = None,
    *,
    name: str | None = None,
    project: str | None = None,
    url: str | None = None,
    config: Mapping[str, Any] | Any | None = None,
    contract: Contract | None = None,
    scale: float | None = None,
    on_finding: OnFinding | None = None,
    overhead: float | Literal["full"] | None = None,
) -> Ledger:
    """Watch every optimizer of this process, and stream what they do to the service.

    ``optimizer`` (one, or any collection of them) need only be given when it was made before this
    call. Of ``model``, its class and its number of parameters go into the configuration of the run;
    what is watched are the optimizers. ``config`` may be a mapping, a dataclass or a namespace.
    ``contract`` and ``scale`` declare an intended weighting other than the mean over tokens with
    balance 1, so that it is not reported.

    ``on_finding`` says what happens here when the service finds something: ``warn`` prints it
    (the default), ``stop`` raises ``gradledger.FindingError`` at the next optimizer step for an
    error, ``stop:warning`` for a warning too, ``off`` does nothing. A function is called with the
    finding, at the next optimizer step and on the training thread; what it raises is yours.

    ``overhead`` is the share of the training thread's time that watching may take, 0.0025 unless
    said otherwise. The first 256 steps are all watched; of later ones, where they are too short
    for that (milliseconds), a few in a row and then none for a while. ``full`` watches all.

    Raises ValueError when ``url``, ``contract``, ``scale``, ``on_finding`` or ``overhead`` cannot
    be what was meant. Of the other arguments, what cannot be used is left out, with a message on
    standard error.
    """
    if contract not in (None, "token", "sequence", "sample"):
        raise ValueError(f"contract must be token, sequence, sample or None, not {contract!r}")
    settings = Settings.from_environment(os.environ)
    settings.url = settings.url if url is None else service_url(url)
    settings.name = arguments.text("name", name) or settings.name
    settings.project = arguments.text("project", project) or settings.project
    settings.contract, settings.scale = contract, None if scale is None else balance(scale)
    settings.config = tagged(settings.config.get("tags", []), arguments.configuration(config))
    settings.config = {**arguments.described(model), **settings.config}
    if overhead is not None:
        settings.overhead = _named("overhead", allowed, overhead)
    chosen = None if on_finding is None else _named("on_finding", policy, on_finding)
    session = start(settings)
    if chosen is not None:  # also where the session was there already
        session.react(chosen)
    arguments.track((optimizer, model if arguments.is_optimizer(model) else None), session)
    return Ledger(session)
