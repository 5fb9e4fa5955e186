"""The spool: content and owners of its files, and removal of records when it is full."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gradledger.delivery.encoding import encode
from gradledger.delivery.spool import Spool, SpoolLocation, take_leftover_files
from gradledger.delivery.spool_file import SpoolFile, is_run
from gradledger.delivery.truncate import thin
from gradledger.records import EvalRecord, RunRecord
from gradledger_monitor.ingest import decode
from gradledger_monitor.ingest.schema import StepRecord
from gradledger_monitor.model.step_facts import RunInfo, merge
from helpers.batches import step

HEAD = encode(RunRecord("night-1", "a run", optimizers=["SGD"]))
LATER_HEAD = encode(RunRecord("night-1", "a run", optimizers=["SGD", "Adam"]))


def lines(first: int, last: int) -> list[bytes]:
    """Steps on the wire."""
    return [encode(step(number)) for number in range(first, last + 1)]


def steps(batch: list[bytes]) -> list[int]:
    """The steps in a batch, as the service decodes it."""
    (report,) = decode.read(b"".join(batch)).processes[-1:]
    return [record.step for _, record in report.records if isinstance(record, StepRecord)]


def spool(folder: Path, max_bytes: int = 2**28) -> Spool:
    """A spool of this process."""
    return Spool(SpoolLocation(folder, "http://there:4777", max_bytes), "night-1.0.99")


def files(folder: Path) -> list[Path]:
    """The files in the spool folder."""
    return sorted(folder.rglob("*.jsonl"))


# ---------------------------------------------------------------------- one file


def test_a_file_begins_with_the_run_record_and_can_be_read_alone(tmp_path: Path) -> None:
    file = SpoolFile.create(tmp_path / "a.jsonl")
    file.append(HEAD, lines(1, 2))
    file.append(LATER_HEAD, lines(3, 3))
    batch = decode.read((tmp_path / "a.jsonl").read_bytes())
    assert not batch.refused.count
    assert [len(report.records) for report in batch.processes] == [2, 1]
    assert [report.run.optimizers for report in batch.processes] == [["SGD"], ["SGD", "Adam"]]
    file.close()


def test_acknowledged_records_are_not_read_again_and_the_rest_keeps_its_run_record(
    tmp_path: Path,
) -> None:
    file = SpoolFile.create(tmp_path / "a.jsonl")
    file.append(HEAD, lines(1, 4))
    file.append(LATER_HEAD, lines(5, 6))
    assert steps(file.peek(2, 10**9)) == [1, 2]
    file.advance(2)
    assert file.peek(1, 10**9) == [HEAD, *lines(3, 3)]
    file.advance(2)
    assert file.peek(9, 10**9)[-3:] == [LATER_HEAD, *lines(5, 6)]
    file.advance(2)
    assert file.peek(9, 10**9) == []
    file.close()


def test_a_batch_from_a_file_is_bounded_and_holds_one_record_at_least(tmp_path: Path) -> None:
    file = SpoolFile.create(tmp_path / "a.jsonl")
    file.append(HEAD, lines(1, 50))
    assert len(steps(file.peek(500, 3000))) < 10
    assert steps(file.peek(500, 1)) == [1]
    file.close()


def test_the_torn_last_line_of_a_killed_process_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join([HEAD, *lines(1, 2)]) + lines(3, 3)[0][:-20])
    file = SpoolFile.take(path)
    assert file is not None
    assert steps(file.peek(9, 10**9)) == [1, 2]
    file.close()


def test_a_complete_last_line_without_a_newline_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join([HEAD, *lines(1, 2)])[:-1])
    file = SpoolFile.take(path)
    assert file is not None
    assert steps(file.peek(9, 10**9)) == [1, 2]
    file.advance(2)
    assert file.peek(9, 10**9) == []
    file.close()


def test_a_file_has_one_owner_and_is_free_when_the_owner_closes_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    owner = SpoolFile.create(path)
    assert SpoolFile.take(path) is None
    owner.close()
    second = SpoolFile.take(path)
    assert second is not None
    assert SpoolFile.take(path) is None
    second.remove()
    assert not path.exists()
    assert SpoolFile.take(path) is None


def test_a_close_in_a_forked_child_does_not_release_the_lock_of_the_parent(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    owner = SpoolFile.create(path)
    child = os.fork()
    if child == 0:
        owner.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert SpoolFile.take(path) is None
    owner.close()


def test_only_run_records_are_recognised_as_run_records() -> None:
    assert is_run(HEAD)
    assert is_run(b'{"v": 1, "type": "run"}')
    named = EvalRecord(1, 2.0, {'"type":"run"': 1.0})
    assert not is_run(encode(named))
    assert not is_run(b'{"type":"run"')
    assert not any(is_run(line) for line in lines(1, 3))


# ---------------------------------------------------------------------- the files of a process


def test_lines_are_read_in_order_over_several_files_which_are_deleted_when_acknowledged(
    tmp_path: Path,
) -> None:
    queue = spool(tmp_path, max_bytes=2**18)
    for first in range(1, 201, 10):
        queue.append(HEAD, lines(first, first + 9))
    assert len(queue) == 200
    assert len(files(tmp_path)) > 3
    read: list[int] = []
    while batch := queue.peek(7, 10**9):
        batch_steps = steps(batch)
        read += batch_steps
        queue.advance(len(batch_steps))
    assert read == list(range(1, 201))
    assert files(tmp_path) == []
    assert len(queue) == 0


def test_the_files_name_run_rank_and_process_and_are_their_owners_alone(tmp_path: Path) -> None:
    queue = spool(tmp_path)
    queue.append(HEAD, lines(1, 1))
    (path,) = files(tmp_path)
    assert path.name == "night-1.0.99.0001.jsonl"
    assert path.parent.name == "http_there_4777"
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0
    queue.close()


def test_a_full_spool_thins_old_steps_before_it_drops_any(
    tmp_path: Path,
) -> None:
    bound = 2**18
    queue = spool(tmp_path, bound)
    dropped, first_loss, number = 0, None, 0
    while dropped == 0:
        number += 1
        dropped = queue.append(HEAD, lines(number, number))
        if first_loss is None and any(b"thinned" in path.read_bytes() for path in files(tmp_path)):
            first_loss = number
        assert sum(path.stat().st_size for path in files(tmp_path)) <= bound + 2**13
    assert first_loss is not None and first_loss < number
    assert len(queue) == number - dropped
    oldest = decode.read(b"".join(queue.peek(1, 10**9))).processes[0].records[0][1]
    assert isinstance(oldest, StepRecord)
    assert oldest.step == dropped + 1
    assert not oldest.micro_batches[0].terms
    while batch := queue.peek(500, 10**9):
        assert not decode.read(b"".join(batch)).refused.count
        newest = steps(batch)[-1]
        queue.advance(len(steps(batch)))
    assert newest == number


def test_a_thinned_step_is_marked_and_has_no_ledger() -> None:
    whole = encode(step(1))
    less = thin(whole)
    assert len(less) < len(whole)
    assert thin(less) == less
    (report,) = decode.read(HEAD + less).processes
    record = report.records[0][1]
    assert isinstance(record, StepRecord)
    facts = merge(RunInfo("night-1", "a run"), 0, 1, {0: record})
    assert facts.micro_batches == 2
    assert facts.ledger is None
    assert "the spool was full" in str(facts.unmeasured)


def test_the_whole_folder_is_bounded_too(tmp_path: Path) -> None:
    location = SpoolLocation(tmp_path, "http://there:4777", 2**17)
    queue = [Spool(location, f"run.0.{process}") for process in range(12)]
    for number in range(1, 301):
        for each in queue:
            each.append(HEAD, lines(number, number))
    assert sum(path.stat().st_size for path in files(tmp_path)) < 8 * 2**17 + 12 * 2**14
    for each in queue:
        each.close()


def test_leftover_files_are_those_of_this_url_without_an_owner(tmp_path: Path) -> None:
    location, other_location = (
        SpoolLocation(tmp_path, "http://here:1"),
        SpoolLocation(tmp_path, "http://there:1"),
    )
    dead, living = Spool(location, "dead.0.1"), Spool(location, "living.0.2")
    other_url = Spool(other_location, "dead.0.3")
    for each in (dead, living, other_url):
        each.append(HEAD, lines(1, 1))
    dead.close()
    other_url.close()
    batch_steps = list(take_leftover_files(location))
    assert [file.path.name for file in batch_steps] == ["dead.0.1.0001.jsonl"]
    for file in batch_steps:
        file.close()
    living.close()


@pytest.mark.parametrize("text", [b"", b"\n\n", b"not json\n", b'{"type":"step"\n'])
def test_a_damaged_file_raises_no_error(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(text)
    file = SpoolFile.take(path)
    assert file is not None
    assert json.dumps([line.decode() for line in file.peek(9, 10**9)])
    file.close()
