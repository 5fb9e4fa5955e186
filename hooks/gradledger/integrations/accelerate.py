"""Accelerate: a tracker, so that ``accelerator.log`` tells evaluations to the run.

    accelerator = Accelerator(log_with=[GradledgerTracker(name="my run")])

Training itself is watched without it.
"""

from __future__ import annotations

from typing import Any

from accelerate.tracking import GeneralTracker

from gradledger import api
from gradledger.integrations import open_session

EVALUATION = ("eval", "val", "test")


class GradledgerTracker(GeneralTracker):
    """Watches the run from now on; takes the options of ``gradledger.watch``.

    Of what is logged, values whose names begin with eval, val or test are evaluations; the rest
    is of training, which the hooks see themselves.
    """

    name = "gradledger"
    requires_logging_directory = False

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.ledger = api.watch(**options)

    @property
    def tracker(self) -> api.Ledger:
        """The watched run, for ``accelerator.get_tracker("gradledger", unwrap=True)``."""
        return self.ledger

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """The configuration that was given to ``accelerator.init_trackers``."""
        open_session.configured(values)

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Evaluations, told at the optimizer step at which they come, whatever ``step`` counts."""
        open_session.evaluation({k: v for k, v in values.items() if k.startswith(EVALUATION)})
