"""How the hooks' cost grows: with tensors, with parameters, with K, with ranks, with the run.

Values are CPU time inside the hooks in one step, measured by clocks around them (sandwich.py).
The points of a curve are measured alternately, twice. Goals: no growth is faster than linear, and a
step costs the same at the end of a run as at its beginning.
"""

from __future__ import annotations

import os
import socket
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from drawing import Curve, draw
from report import Measure, Report, arguments, publish, shown
from sandwich import Sandwich
from services import service
from step_cost import BLOCK, Hooks, block
from torch import nn
from torch.multiprocessing.spawn import spawn
from training import GPT, TINY, K, Loop, Size

from gradledger_monitor.demo import byte_lm

LENGTH = 16
PICTURE = Path(__file__).resolve().parent.parent / "docs/images/growth.svg"
LINEAR = 1.1  # the exponent that a noisy line may show
FLAT = 1.1

Point = tuple[float, Size, int]  # where on the curve, what is trained, K


def of(width: int, depth: int) -> Size:
    """A small GPT of another shape."""
    return Size(f"{width}x{depth}", lambda: byte_lm.ByteTransformer(width, 4, depth), LENGTH)


def tensors() -> list[Point]:
    """More and more layers, all of them small."""
    sizes = [of(32, depth) for depth in (1, 2, 4, 8, 16)]
    return [(len(list(size.model().parameters())), size, K) for size in sizes]


def parameters() -> list[Point]:
    """Wider and wider layers, two of them."""
    sizes = [of(width, 2) for width in (32, 64, 128, 256, 512)]
    return [(sum(p.numel() for p in size.model().parameters()), size, K) for size in sizes]


def micro_batches() -> list[Point]:
    """More and more of them in a step."""
    return [(k, GPT, k) for k in (1, 2, 4, 8, 16)]


CURVES: dict[str, Callable[[], list[Point]]] = {
    "tensors": tensors,
    "parameters": parameters,
    "K": micro_batches,
}


def inside(sandwich: Sandwich, loop: Loop, url: str, blocks: int) -> list[float]:
    """Microseconds in the hooks, of each step."""
    hooks = Hooks(sandwich, url, loop)
    spent = []
    for _ in range(blocks):
        spent += block(loop, hooks, "timed", [loop.window() for _ in range(BLOCK)])[1]
    hooks.close()
    return spent


def curve_of(
    sandwich: Sandwich, url: str, title: str, points: Sequence[Point], blocks: int
) -> Curve:
    """One curve, its points in turns."""
    taken: list[list[float]] = [[] for _ in points]
    for _ in range(2):
        for (_, size, k), spent in zip(points, taken, strict=True):
            spent += inside(sandwich, Loop(size, k), url, blocks)
    at = [x for x, _, _ in points]
    return Curve(title, list(zip(at, map(statistics.median, taken), strict=True)))


def over_a_run(sandwich: Sandwich, url: str, steps: int) -> Curve:
    """The median of every tenth of a long run."""
    loop = Loop(TINY)
    hooks = Hooks(sandwich, url, loop)
    window = loop.window()
    hooks.on(timed=True)
    spent = []
    for _ in range(steps):
        loop.step(window)
        spent.append(hooks.inside() * 1e6)
    hooks.off()
    hooks.close()
    part = steps // 10
    tenths = [statistics.median(spent[at : at + part]) for at in range(0, steps, part)]
    return Curve("steps of a run", [((n + 1) * part, y) for n, y in enumerate(tenths)])


# ---------------------------------------------------------------- ranks


def rank(number: int, ranks: int, port: int, blocks: int, file: str) -> None:
    """One rank of a training with DDP; the first one writes down the median."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(number), "WORLD_SIZE": str(ranks)}
    torch.distributed.init_process_group("gloo")
    sandwich, loop = Sandwich(), Loop(GPT)
    loop.model = nn.parallel.DistributedDataParallel(loop.model)
    with service("accepts") as url:
        spent = inside(sandwich, loop, url, blocks)
    if number == 0:
        Path(file).write_text(str(statistics.median(spent)))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def over_ranks(blocks: int) -> Curve:
    """One rank, and two."""
    points = []
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (1, 2):
            with socket.create_server(("127.0.0.1", 0)) as server:
                port = server.getsockname()[1]
            result_file = Path(folder) / str(ranks)
            spawn(rank, (ranks, port, blocks, str(result_file)), ranks)
            points.append((float(ranks), float(result_file.read_text())))
    return Curve("ranks (DDP, gloo)", points)


# ---------------------------------------------------------------- measures and notes


def verdict(curve: Curve) -> Measure:
    """The exponent of a curve."""
    name = f"growth exponent with {curve.title}"
    held = curve.exponent < LINEAR
    return Measure(name, curve.exponent, "", goal="at most 1 (linear)", holds=held)


def flat(curve: Curve) -> Measure:
    """The end of a run over its beginning."""
    ratio = curve.points[-1][1] / curve.points[0][1]
    goal = f"flat: under {FLAT:g} x"
    return Measure(
        "last tenth of a run relative to the first", ratio, "x", goal=goal, holds=ratio < FLAT
    )


def listed(curve: Curve) -> str:
    """The points in words."""
    points = ", ".join(f"{x:,.0f}: {shown(y)} us" for x, y in curve.points)
    return f"By {curve.title}: {points}."


def main() -> None:
    """The command."""
    parser = arguments(__doc__)
    parser.add_argument("--blocks", type=int, default=6, help="for each point, in each turn")
    parser.add_argument("--steps", type=int, default=10_000, help="of the long run")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    options = parser.parse_args()
    os.environ["GRADLEDGER_SPOOL"] = "off"
    report = Report("Growth of the cost", "python bench/growth.py")
    sandwich = Sandwich()
    with service("accepts") as url:
        curves = [
            curve_of(sandwich, url, title, points(), options.blocks)
            for title, points in CURVES.items()
        ]
        run = over_a_run(sandwich, url, options.steps)
    ranks = over_ranks(options.blocks)
    report.measures += [*map(verdict, curves), verdict(ranks), flat(run)]
    report.notes = [listed(curve) for curve in (*curves, ranks, run)]
    report.notes.append("![Microseconds in the hooks in one step](images/growth.svg)")
    options.picture.write_text(draw([*curves, run]))
    publish(report, options.json)


if __name__ == "__main__":
    main()
