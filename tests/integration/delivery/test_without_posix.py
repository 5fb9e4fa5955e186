"""A system without ``fcntl``, ``fork`` and positioned reads, such as Windows, loses no records.

Windows is simulated: before gradledger is imported again, the missing functions are removed,
``msvcrt.locking`` is implemented with Linux locks, and open files can be neither renamed nor
deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from helpers.misbehaving import says, server, takes

from .conftest import PRELUDE, Scripts

HIDDEN = """
import errno, fcntl, glob, os, select, signal, struct, sys, types
import torch, torch.nn.functional as F

def locking(descriptor, mode, size):
    assert mode == 2 and size == 1
    at = os.lseek(descriptor, 0, os.SEEK_CUR)
    region = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, at, size, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, region)

def is_open(path):
    for link in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if os.path.samefile(link, path):
                return True
        except OSError:
            pass
    return False

def closed_only(function):
    def call(source, *others, **more):
        if is_open(source):
            raise PermissionError(errno.EACCES, "used by another process", str(source))
        if function is rename and os.path.exists(others[0]):
            raise FileExistsError(errno.EEXIST, "exists", str(others[0]))
        return function(source, *others, **more)
    return call

rename = os.rename
os.rename, os.replace, os.unlink = map(closed_only, (os.rename, os.replace, os.unlink))
for module, names in ((os, ("pread", "pwrite", "register_at_fork", "fork", "getuid")),
                      (signal, ("pthread_sigmask",)), (select, ("poll",))):
    for name in names:
        delattr(module, name)

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "fcntl" or name == "msvcrt":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in [name for name in sys.modules if name.split(".")[0] in ("gradledger", "fcntl")]:
    del sys.modules[name]
sys.meta_path.insert(0, Hidden())
"""
WINDOWS = HIDDEN + "sys.modules['msvcrt'] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)\n"
# Wait until the uploader has searched for files of ended processes.
SEARCHES = """
search, searches = uploader.Uploader._send_leftover_files, []
uploader.Uploader._send_leftover_files = lambda self: searches.append(search(self))
train(3)
wait_until(lambda: searches)
"""
TRAINS = """
import gradledger
gradledger.watch()
train({steps})
"""


def run(
    scripts: Scripts,
    system: str,
    code: str,
    url: str,
    environ: Mapping[str, str] | None = None,
) -> CompletedProcess[str]:
    """Run a script on such a system."""
    # After the change, the prelude of all scripts imports gradledger again.
    program = f"{system}\nexec({PRELUDE + code!r})"
    return scripts.run(program, url, hooks=False, environ=environ)


@pytest.mark.parametrize("system", [WINDOWS, HIDDEN], ids=["windows", "no locks at all"])
def test_unsent_records_are_on_the_disk(system: str, scripts: Scripts, nowhere: str) -> None:
    done = run(scripts, system, TRAINS.format(steps=12), nowhere)
    assert done.returncode == 0, done.stderr
    assert scripts.on_disk() == 12
    assert done.stderr.count("gradledger:") == done.stderr.count("\n") == 1


def test_a_later_process_sends_the_files_of_an_earlier_one(scripts: Scripts) -> None:
    with server(says(500)) as service:
        assert run(scripts, WINDOWS, TRAINS.format(steps=12), service.url).returncode == 0
        assert scripts.on_disk() == 12
        service.behaviour = takes
        code = TRAINS.format(steps=3) + "wait_until(lambda: not [*Path('spool').rglob('*.jsonl')])"
        done = run(scripts, WINDOWS, code, service.url)
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(map(str, service.steps())) == sorted(map(str, [*range(1, 13), 1, 2, 3]))
    assert list(scripts.spool.rglob("*.jsonl")) == []


def test_without_locks_no_process_sends_a_file_that_may_have_an_owner(scripts: Scripts) -> None:
    with server(says(500)) as service:
        assert run(scripts, HIDDEN, TRAINS.format(steps=12), service.url).returncode == 0
        service.behaviour = takes
        assert run(scripts, HIDDEN, TRAINS.format(steps=0) + SEARCHES, service.url).returncode == 0
        assert service.steps() == [1, 2, 3]
    assert scripts.on_disk() == 12


FILES = """
from pathlib import Path
from gradledger.delivery.spool import SpoolLocation, Spool, take_leftover_files, _thin
from gradledger.delivery.spool_file import SpoolFile

head, step = b'{"type":"run","run":"a"}\\n', b'{"type":"step","n":%d,"samples":{}}\\n'
own = Path("spool") / "http_there"
own.mkdir(parents=True)
file = SpoolFile.create(own / "a.jsonl")
file.append(head, [step % n for n in range(3)])
assert SpoolFile.take(own / "a.jsonl") is None, "it has an owner"
_thin(file)
file.append(head, [step % 3])
assert [line.count(b"missing") for line in file.peek(9, 10**6)] == [0, 1, 1, 1, 0]
assert SpoolFile.take(own / "a.jsonl") is None, "it still has"
file.advance(2)
file.close()
taken = SpoolFile.take(own / "a.jsonl")
assert taken is not None and len(taken.peek(9, 10**6)) == 5
taken.mark_refused()
taken.close()
assert [path.name for path in own.iterdir()] == ["a.refused"]
spool = Spool(SpoolLocation(Path("spool"), "http://there", 2**16), "b.0.1")
for n in range(2000):
    spool.append(head, [step % n])
spool.close()
location = SpoolLocation(Path("spool"), "http://there")
left = [int(line.split(b'"n":')[1].split(b",")[0]) for file in take_leftover_files(location)
        for line in file.peek(10**6, 10**9) if b'"n"' in line]
assert left == list(range(left[0], 2000)) and 0 < left[0] < 2000
print("held")
"""


def test_files_are_locked_thinned_claimed_and_marked_as_refused(
    scripts: Scripts, nowhere: str
) -> None:
    done = run(scripts, WINDOWS, FILES, nowhere)
    assert (done.returncode, done.stdout) == (0, "held\n"), done.stderr


def test_the_default_folder_stores_unsent_records(
    scripts: Scripts, nowhere: str, tmp_path: Path
) -> None:
    """``~/.gradledger`` is made private where there are owners and modes, and made anyway."""
    home = {"HOME": str(tmp_path), "GRADLEDGER_SPOOL": ""}
    done = run(scripts, WINDOWS, TRAINS.format(steps=12), nowhere, home)
    assert done.returncode == 0, done.stderr
    left = list((tmp_path / ".gradledger" / "spool").rglob("*.jsonl"))
    assert sum(path.read_bytes().count(b'"type":"step"') for path in left) == 12
