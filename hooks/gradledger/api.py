"""``gradledger.watch``: start the hooks from a training script."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from gradledger import arguments, guard, torch_version
from gradledger.on_finding import OnFinding, parse_policy
from gradledger.settings import (
    Contract,
    Settings,
    parse_overhead,
    parse_scale,
    parse_url,
    with_tags,
)

if TYPE_CHECKING:
    from gradledger.session import Session

T = TypeVar("T")


class Ledger:
    """A recorded run. A context manager; the end of the process closes it at the latest.

    With a PyTorch that is not supported there is no session, and the methods do nothing.
    """

    def __init__(self, session: Session | None) -> None:
        self._session = session

    def __repr__(self) -> str:
        if self._session is None:
            return "Ledger(not recording)"
        name = self._session.settings.name
        parts = (repr(name) if name else "", self._session.page(), self._session.verdict())
        return f"Ledger({', '.join(filter(None, parts))})"

    def log_eval(self, step: int, /, **values: float) -> None:
        """Record evaluation metrics at an optimizer step, e.g. ``log_eval(100, loss=2.1)``.

        A value that is not a single number is omitted, with a message on standard error.
        """
        if self._session is not None:
            self._session.log_eval(step, values)

    def checkpoint(self, path: object = "", /, *, step: int | None = None) -> None:
        """Record that a checkpoint was saved, after the last optimizer step unless ``step`` is set.

        A post-mortem report then names the last good checkpoint. ``path`` is shown there.
        """
        if self._session is not None:
            self._session.checkpoint(step, path)

    def micro_batch(
        self, *, tokens: Any, reduction: Literal["mean", "sum"], scale: float = 1.0
    ) -> None:
        """Declare the loss of the next backward, if the hooks cannot observe it.

        Declare a loss that is computed in a compiled graph or a custom autograd function: it is
        ``scale`` times the mean or the sum over ``tokens`` tokens (a number or a tensor; the hooks
        do not wait for its value). The declaration describes the output of the hidden part. The
        hooks observe what the script does with that output. If the graph has no hidden part, the
        declaration describes the value on which ``backward`` is called.

        With g the gradient of that output, the weight of a token is ``scale * g / tokens`` for a
        mean and ``scale * g`` for a sum.
        """
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction={reduction!r} is invalid: use mean or sum")
        if self._session is not None:
            with guard.fail_open("ledger.micro_batch"):
                self._session.recorder.losses.declare(tokens, reduction, scale)

    def pause(self) -> None:
        """Remove the hooks until ``resume``; call it between two steps, before other code runs."""
        if self._session is not None:
            self._session.recorder.uninstall()

    def resume(self) -> None:
        """Install the hooks again. A window that ``pause`` interrupted is discarded."""
        if self._session is not None:
            with guard.fail_open("ledger.resume"):
                self._session.recorder.resume()

    def close(self) -> None:
        """Remove every hook and deliver the remaining records."""
        if self._session is not None:
            self._session.close()

    def __reduce__(self) -> tuple[type[Ledger], tuple[None]]:
        """A copy, such as in a process that is spawned, records nothing."""
        return Ledger, (None,)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _parse(argument: str, parse: Callable[[Any], T], value: Any) -> T:
    """The parsed value of an argument; a ValueError names the argument."""
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"{argument}={value!r} is invalid: {error}") from None


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
    """Record the steps of every optimizer in this process and send the records to the service.

    Pass ``optimizer`` (one, or any collection of them) if it was created before this call; later
    optimizers are recorded automatically. ``model`` adds its class and its number of parameters to
    the configuration of the run, and names to its layers. ``config`` may be a mapping, a dataclass
    or a namespace. ``contract`` and ``scale`` declare an intended weighting other than the mean
    over tokens with balance 1, so that it is not reported. ``contract="token"`` declares that all
    backwards of a step are of one loss: without it, those at several lines of the script, or with
    one constant target each, may be separate losses, and are then not measured.

    ``on_finding`` sets what this process does when the service reports a finding. ``warn``, the
    default, prints it. ``stop`` raises ``gradledger.FindingError`` at the next optimizer step for
    an error, ``stop:warning`` for a warning, too. ``off`` does nothing. A function is called with
    the finding on the training thread, at the next optimizer step; an exception that it raises
    reaches the script.

    ``overhead`` is the share of the training thread's time that recording may take, 0.0025 by
    default. The first 256 steps are all recorded. If steps are too short for that share
    (milliseconds), later steps are sampled: a few consecutive steps, then a pause. ``full``
    records every step.

    Raises ValueError if ``url``, ``contract``, ``scale``, ``on_finding`` or ``overhead`` is
    invalid. Any other argument that cannot be used is ignored, with a message on standard error.
    """
    if contract not in (None, "token", "sequence", "sample"):
        raise ValueError(f"contract={contract!r} is invalid: use token, sequence, sample or None")
    settings = Settings.from_environment(os.environ)
    settings.url = settings.url if url is None else parse_url(url)
    settings.name = arguments.to_name("name", name) or settings.name
    settings.project = arguments.to_name("project", project) or settings.project
    settings.contract, settings.scale = contract, None if scale is None else parse_scale(scale)
    settings.config = with_tags(settings.config.get("tags", []), arguments.config_entries(config))
    settings.config = {**arguments.model_entries(model), **settings.config}
    if overhead is not None:
        settings.overhead = _parse("overhead", parse_overhead, overhead)
    policy = None if on_finding is None else _parse("on_finding", parse_policy, on_finding)
    if not torch_version.check():
        return Ledger(None)
    from gradledger.session import start  # noqa: PLC0415 (PyTorch 1 lacks names that it imports)

    session = start(settings)
    if policy is not None:  # set here because `start` returns a session that is already open
        session.set_policy(policy)
    arguments.remember_model(model)
    arguments.track((optimizer, model if arguments.is_optimizer(model) else None), session)
    return Ledger(session)
