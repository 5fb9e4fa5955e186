"""From a record's arrival to the webhook leaving: how long a person waits for an error.

Starts the service and a receiver in separate processes. Sends one run after another, each with an
error in its first step, while other runs without errors send steps. The time is from sending the
batch to the service until the receiver has the message; both run on this machine and share its
clock. Prints the median and the 95th percentile.

Give the number of runs as an argument. The target is a median under 2 seconds.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from helpers.batches import batch, eventually, fair_step, step
from helpers.receiver import Receiver, receiving
from helpers.service import Service, running_service
from integration.alerts.conftest import sending_to

TARGET_SECONDS = 2.0
HEALTHY = 5  # batches of sound runs for each error
PAUSE_SECONDS = 0.2


def main(runs: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder, receiving(Path(folder) / "receiver") as receiver:
        with running_service(Path(folder) / "a.db", **sending_to(receiver)) as service:
            sent = _send(service, runs)
            if not eventually(60, lambda: len(receiver.alerts()) >= runs):
                sys.exit(f"only {len(receiver.alerts())} of {runs} alerts arrived")
        _report(sent, receiver)


def _send(service: Service, runs: int) -> dict[str, float]:
    sent: dict[str, float] = {}
    for number in range(runs):
        for sound in range(HEALTHY):
            service.post(batch(f"sound-{sound}", [fair_step(number + 1)]))
        name = f"wrong-{number}"
        sent[name] = time.time()
        service.post(batch(name, [step(1)]))
        time.sleep(PAUSE_SECONDS)
    return sent


def _report(sent: dict[str, float], receiver: Receiver) -> None:
    came = {one["body"]["data"]["run"]["id"]: one["at"] for one in reversed(receiver.got())}
    waits = sorted(came[name] - at for name, at in sent.items())
    median, late = statistics.median(waits), waits[int(len(waits) * 0.95)]
    print(f"{len(waits)} errors alerted: median {median:.3f} s, 95% within {late:.3f} s")
    print(f"target: median under {TARGET_SECONDS:g} s, {'met' if median < 2 else 'missed'}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
