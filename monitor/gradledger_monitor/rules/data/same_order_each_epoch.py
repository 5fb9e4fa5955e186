"""data.same_order_each_epoch"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.fingerprints import MOST, Fingerprints
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured
from gradledger_monitor.rules.state import declare

LENGTHS = (4, 16, 64)  # of the sequences by which a repetition is found, in fingerprints
# Real and fake rows in one batch always have the same targets, but for a short last batch.
DIFFERENT = 3

FIX = """\
for epoch in range(epochs):
    sampler.set_epoch(epoch)         # DistributedSampler shuffles with seed + epoch
    for batch in loader: ...         # other samplers: set no seed in each epoch"""

FIX_GENERATOR = """\
# once, before all epochs; seed neither this generator nor PyTorch again in an epoch
loader = DataLoader(dataset, batch_size, shuffle=True, generator=generator)
for epoch in range(epochs):
    for batch in loader: ...
# with a DistributedSampler: sampler.set_epoch(epoch) in each epoch
# a sampler of your script: seed its generator once, or with seed + epoch"""


class SameOrderEachEpoch(Rule):
    """Every epoch repeats the order of the previous one.

    **What it sees**

    The sequence of micro-batches of an epoch, by the fingerprints of their targets, repeats
    exactly, although the sampler of the ``DataLoader`` shuffles: it is PyTorch's own, its attribute
    ``shuffle`` is true, or its code draws a permutation each time it is iterated, and reads no
    attribute that is false.

    **Why it matters**

    The gradient of each step is right, but the noise of shuffling is lost: the same samples are
    combined in every epoch.

    **What to do**

    Call ``sampler.set_epoch(epoch)``, and do not reseed the generator of the sampler at each
    epoch.

    **When it is silent**

    The ``DataLoader`` has no shuffling sampler, or one of the script that draws its order in its
    constructor or in a function; fewer than 4 micro-batches repeat (overfitting
    one batch on purpose), or fewer than 3 different ones; targets that do not depend on the data
    (real and fake of a GAN), or vary so little that chance repeats them.

    **Incidents**

    pytorch/pytorch#31771, NVIDIA/tacotron2#241, huggingface/nanoVLM#124
    """

    points_at = ("batches",)
    by_window = False
    secondary = True

    least = Parameter(4, "smallest number of micro-batches that counts as an epoch")

    state = declare(
        _fingerprints=Fingerprints,
        _last=deque[float],
        _bits=deque[float],
        _places=dict[int, int],
        _distances=list[int],
        _matches=list[int],
        _surprise=list[float],
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._fingerprints = Fingerprints()
        self._last: deque[float] = deque(maxlen=LENGTHS[-1])
        self._bits: deque[float] = deque(maxlen=LENGTHS[-1])
        self._places: dict[int, int] = {}  # hash of a sequence -> its last position
        # for each length of a sequence: its last distance, how long that has held, and its bits
        self._distances = [0] * len(LENGTHS)
        self._matches = [0] * len(LENGTHS)
        self._surprise = [0.0] * len(LENGTHS)

    def evaluate(self, window: Window) -> Outcome:
        """The last P micro-batches have the fingerprints of the P before them."""
        record = window.facts.record
        if record.sampler != "random":
            return not_applicable("no DataLoader whose sampler is known to shuffle")
        prints = [number(m.fingerprint) for m in record.micro_batches if not m.constant_target]
        if record.micro_batches and not prints:
            return not_applicable("targets that do not depend on the data")
        if any(p is None for p in prints):
            return not_measured("no fingerprint of the loss targets")
        repeated = max([self._push(p) for p in prints if p is not None], default=0)
        if repeated < self.least:
            return OK
        some = " whose targets are not constant" if len(prints) < len(record.micro_batches) else ""
        return finding(
            "warning",
            "Every epoch repeats the same order",
            f"The last {repeated:,} micro-batches{some} have the same targets, in the same order, "
            f"as the {repeated:,} before them, although the sampler shuffles.",
            FIX if window.facts.run.world_size > 1 else FIX_GENERATOR,
            period=repeated,
        )

    def _push(self, fingerprint: float) -> int:
        """Add a fingerprint; return the period once a whole one has repeated, else 0."""
        if len(self._places) > MOST:
            self._places.clear()
        self._bits.append(self._fingerprints.add(fingerprint))
        self._last.append(fingerprint)
        return max(self._period(track, length) for track, length in enumerate(LENGTHS))

    def _period(self, track: int, length: int) -> int:
        """The period by sequences of one length, which must be longer for fewer labels."""
        if len(self._last) < length:
            return 0
        position = self._fingerprints.total
        key = hash((length, *list(self._last)[-length:]))
        distance = position - self._places.get(key, position)
        self._places[key] = position
        if distance > 0 and distance == self._distances[track]:
            self._matches[track] += 1
            self._surprise[track] += self._bits[-1]
        else:
            self._distances[track] = distance
            self._matches[track] = length if distance > 0 else 0
            self._surprise[track] = sum(list(self._bits)[-length:])
        whole = 0 < distance <= self._matches[track]
        if not whole or self._surprise[track] < self._fingerprints.needed:
            return 0
        return distance if len(set(list(self._last)[-distance:])) >= DIFFERENT else 0
