"""Accelerate: a tracker that adds the evaluation metrics of ``accelerator.log`` to the run.

    accelerator = Accelerator(log_with=[GradledgerTracker(name="my run")])

The hooks record the training itself without it.
"""

from __future__ import annotations

from typing import Any

from accelerate.tracking import GeneralTracker

from gradledger import api
from gradledger.integrations import open_session

EVALUATION = ("eval", "val", "test")


class GradledgerTracker(GeneralTracker):
    """Starts recording; accepts the options of ``gradledger.watch``.

    Logged values whose names start with eval, val or test are evaluation metrics. Other values
    describe training, which the hooks record themselves, so they are skipped.
    """

    name = "gradledger"
    requires_logging_directory = False

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.ledger = api.watch(**options)

    @property
    def tracker(self) -> api.Ledger:
        """The recorded run, for ``accelerator.get_tracker("gradledger", unwrap=True)``."""
        return self.ledger

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Add the configuration passed to ``accelerator.init_trackers``."""
        open_session.configure(values)

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record evaluation metrics at the current optimizer step; ``step`` may count others."""
        open_session.log_evaluation({k: v for k, v in values.items() if k.startswith(EVALUATION)})
