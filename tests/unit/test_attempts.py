"""Which runs are attempts of one job: what launchers state decides, and doubt links nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from gradledger import identity
from gradledger_monitor.model.attempts import attempts_of, job_key, restarts_text

LOG = "/tmp/torchelastic_k2/none_8f/attempt_{}/0/error.json"


def torchrun(restarts: int, log: str = LOG, job: str = "none") -> dict[str, str]:
    """The variables of a worker."""
    return {
        "TORCHELASTIC_RUN_ID": job,
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_ERROR_FILE": log.format(restarts),
    }


def slurm(restarts: int | None, job: str = "4711") -> dict[str, str]:
    """The variables of a SLURM job; the count is absent at its first start."""
    return {"SLURM_JOB_ID": job} | ({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {})


@dataclass
class Run:
    id: str
    environment: dict[str, str]
    world_size: int = 2


def linked(
    *variables: dict[str, str], of: int = 0, name: str = "train", commands: Sequence[str] = ()
) -> list[str]:
    """The attempts of one of these runs, as the service finds them; ``of`` is its index."""
    runs = [Run(str(n), identity.launchers(each)) for n, each in enumerate(variables)]
    for run, command in zip(runs, commands, strict=False):
        run.environment["command"] = command
    keys = {run.id: job_key(name, "default", run.environment) for run in runs}
    key = keys[str(of)]
    same = [run for run in runs if key is not None and keys[run.id] == key]
    return [run.id for run in attempts_of(str(of), same)]


def test_the_restarts_of_one_torchrun_are_attempts() -> None:
    for each in range(3):
        assert linked(torchrun(0), torchrun(1), torchrun(2), of=each) == ["0", "1", "2"]


def test_the_trainings_that_one_worker_starts_are_not_attempts_of_each_other() -> None:
    """They inherit its environment: a sweep, or one launcher that is called twice."""
    assert linked(torchrun(0), torchrun(0)) == []
    assert linked(torchrun(0), torchrun(1), torchrun(0)) == []
    sweep = ["train.py --lr 1", "train.py --lr 2"]
    assert linked(torchrun(0), torchrun(0), commands=sweep) == []
    again = [torchrun(n) for n in (0, 0, 1, 1)]
    assert linked(*again, commands=sweep * 2) == ["0", "2"]
    assert linked(*again, commands=sweep * 2, of=3) == ["1", "3"]


def test_a_change_of_members_that_torchrun_does_not_count_is_an_attempt() -> None:
    runs = [Run(str(n), identity.launchers(torchrun(0)), 4 - n) for n in range(2)]
    assert [run.id for run in attempts_of("0", runs)] == ["0", "1"]


@pytest.mark.parametrize("job", ["none", "100"])
def test_two_torchruns_of_one_job_id_are_not(job: str) -> None:
    other = "/tmp/torchelastic_9x/none_1c/attempt_{}/0/error.json"
    runs = (torchrun(0, job=job), torchrun(1, job=job), torchrun(1, other, job))
    assert linked(*runs) == ["0", "1"]
    assert linked(*runs, of=2) == []


def test_a_torchrun_whose_launch_is_not_known_has_no_attempts() -> None:
    unknown = [{**torchrun(n, job="pretrain"), "TORCHELASTIC_ERROR_FILE": ""} for n in range(2)]
    assert linked(*unknown) == []
    assert identity.launchers(unknown[1]) == {"torchrun job": "pretrain", "torchrun restarts": "1"}
    assert identity.launchers({}) == {}


def test_a_requeued_slurm_job_links_its_starts() -> None:
    assert linked(slurm(None), slurm(1), slurm(2), of=1) == ["0", "1", "2"]
    assert linked(slurm(None), slurm(1, "4712")) == []


def test_trainings_in_sequence_in_one_slurm_job_are_not_attempts() -> None:
    assert linked(slurm(None), slurm(None)) == []
    assert linked(slurm(None), slurm(None), slurm(1)) == []


def test_restarts_of_torchrun_in_a_requeued_slurm_job_are_one_sequence() -> None:
    later = "/tmp/torchelastic_9x/none_1c/attempt_{}/0/error.json"
    first, second = slurm(None) | torchrun(0), slurm(None) | torchrun(1)
    assert linked(first, second, slurm(1) | torchrun(0, later)) == ["0", "1", "2"]
    # two launches in one start: each has its restarts only
    assert linked(first, second, slurm(None) | torchrun(0, later)) == ["0", "1"]


def test_several_trainings_of_one_process_are_not_linked() -> None:
    runs = [Run(str(n), identity.launchers(torchrun(n // 2))) for n in range(4)]
    runs[1].environment["training of the process"] = "2"
    runs[3].environment["training of the process"] = "2"
    assert attempts_of("2", runs) == []


def test_the_key_separates_names_and_commands() -> None:
    environment = identity.launchers(slurm(None)) | {"command": "train.py --lr 1"}
    other = environment | {"command": "train.py --lr 2"}
    keys = {
        job_key("a", "p", environment),
        job_key("b", "p", environment),
        job_key("a", "p", other),
    }
    assert len(keys) == 3
    launches = [identity.launchers(torchrun(0)) | {"command": f"train.py {n}"} for n in range(2)]
    assert len({job_key("a", "p", launch) for launch in launches}) == 2
    assert job_key("a", "p", {"host": "n1"}) is None


def test_restarts_are_named_with_their_launchers() -> None:
    assert restarts_text(identity.launchers(slurm(1) | torchrun(2))) == (
        "SLURM restart 1, torchrun restart 2"
    )
