"""Peers that log ten scalars per step as their manuals recommend: contexts that yield a ``Log``.

They run in a separate environment (bench/peers-training.txt) and write files to the working
directory, which is temporary.
"""

# ruff: noqa: PLC0415 (only the peer that is measured is imported)
from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

Log = Callable[[int, float], None]  # step, loss

NAMES = tuple(f"train/scalar_{n}" for n in range(9))


def scalars(loss: float) -> dict[str, float]:
    """Ten of them."""
    return {"train/loss": loss} | {name: loss + n for n, name in enumerate(NAMES)}


@contextmanager
def trackio() -> Iterator[Log]:
    """Hugging Face's trackio, local."""
    os.environ["TRACKIO_DIR"] = os.path.abspath("trackio")
    import trackio

    run = trackio.init("bench", auto_log_gpu=False, auto_log_cpu=False)
    yield lambda step, loss: run.log(scalars(loss), step=step)
    trackio.finish()


@contextmanager
def tensorboard() -> Iterator[Log]:
    """PyTorch's SummaryWriter."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter("tensorboard")

    def log(step: int, loss: float) -> None:
        for name, value in scalars(loss).items():
            writer.add_scalar(name, value, step)

    yield log
    writer.close()


@contextmanager
def wandb_offline() -> Iterator[Log]:
    """Weights & Biases, offline."""
    import wandb

    settings = wandb.Settings(silent=True, x_disable_stats=True)
    run = wandb.init(mode="offline", project="bench", settings=settings)
    yield lambda step, loss: run.log(scalars(loss), step=step)
    run.finish()


@contextmanager
def aim() -> Iterator[Log]:
    """Aim, with a local repository."""
    import aim

    run = aim.Run(repo=".", system_tracking_interval=None, capture_terminal_logs=False)
    yield lambda step, loss: run.track(scalars(loss), step=step)
    run.close()


@contextmanager
def mlflow(synchronous: bool) -> Iterator[Log]:
    """MLflow with a local server on SQLite."""
    with _mlflow_server() as url:
        import mlflow

        mlflow.set_tracking_uri(url)
        mlflow.set_experiment("bench")
        with mlflow.start_run():
            yield lambda step, loss: _log(mlflow, step, loss, synchronous)
            if not synchronous:
                mlflow.flush_async_logging()


def _log(mlflow: Any, step: int, loss: float, synchronous: bool) -> None:
    mlflow.log_metrics(scalars(loss), step=step, synchronous=synchronous)


@contextmanager
def _mlflow_server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", "sqlite:///mlflow.db"]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_for(f"{url}/health")
            yield url
        finally:
            server.terminate()


def _wait_for(url: str, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
        else:
            return


PEERS: dict[str, Callable[[], AbstractContextManager[Log]]] = {
    "TensorBoard": tensorboard,
    "trackio": trackio,
    "W&B offline": wandb_offline,
    "Aim": aim,
    "MLflow async": lambda: mlflow(synchronous=False),
    "MLflow server, sync": lambda: mlflow(synchronous=True),
}
