"""Whether the files of a git repository differ from its commit, without a git process.

A process of ours would be a child of the script, whose signal handlers and ``wait`` calls it would
reach. So the index is read: it holds the size and the time of every file as git knows them. A file
with the same size and another time is hashed, as git does. Files that are added and not committed
are found through the tree of the commit; if its objects are packed, that is not known.

A background thread calls this once. ``None``: not known.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import time
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from gradledger.provenance import common_folder, git_of_script, head_of

MOST_NAMED = 8  # changed files
MOST_ENTRIES = 20_000  # files of a repository
MOST_HASHED = 64  # files of the same size and another time
MOST_BYTES = 2**24  # of each
YIELD_EVERY = 256  # files, after which other threads run
MOST_SECONDS = 1.0  # on a slow network file system, it is not known
_HEADER = struct.Struct(">4sLL")
_ENTRY = struct.Struct(">10L20sH")
_ASSUME_VALID, _EXTENDED, _STAGE = 0x8000, 0x4000, 0x3000
_SKIP_WORKTREE = 0x4000  # of the extended flags
_SUBMODULE = 0o160000


class _Entry(NamedTuple):
    """A file as the index knows it."""

    path: bytes
    mode: int
    modified: tuple[int, int]  # seconds and nanoseconds
    size: int
    blob: bytes
    ignored: bool  # git does not compare it


class _Index(NamedTuple):
    entries: list[_Entry]
    tree: bytes | None  # that a commit of it would have, if git has noted it
    written: tuple[int, int] = (0, 0)  # when

    @property
    def stores_as_is(self) -> bool:
        """Whether no attributes make git convert files before it stores them."""
        return not any(e.path.rpartition(b"/")[2] == b".gitattributes" for e in self.entries)


@lru_cache(maxsize=1)
def dirty() -> str | None:
    """Whether files of the script's repository differ from its commit: ``no``, or which ones."""
    try:
        root, git = git_of_script()
    except (OSError, TypeError, ValueError):
        return None
    changed = None if root is None or git is None else changed_files(root, git)
    if changed is None:
        return None
    names = ", ".join(name.encode(errors="replace").decode() for name in changed[:MOST_NAMED])
    more = len(changed) - MOST_NAMED
    return f"{names} and {more} more" if more > 0 else names or "no"


def changed_files(root: Path, git: Path) -> list[str] | None:
    """The files of a work tree that its commit does not hold like this; None if not known."""
    try:
        path = git / "index"
        index = _read_index(path.read_bytes())
        if index is None or len(index.entries) > MOST_ENTRIES or _is_unusual(git):
            return None
        changed = _changed_since_index(root, index._replace(written=_time_of(path.stat())))
        if changed or changed is None:
            return changed
        return _changed_since_commit(git, index)
    except (OSError, ValueError, struct.error, zlib.error, IndexError):
        return None


def _is_unusual(git: Path) -> bool:
    """Whether object names are no SHA-1, or files are filtered before they are stored (LFS)."""
    common = common_folder(git)
    config = (common / "config").read_text(errors="replace").lower()
    attributes = common / "info" / "attributes"
    return "objectformat" in config or '[filter "' in config or attributes.is_file()


# ---------------------------------------------------------------------- the index


def _read_index(data: bytes) -> _Index | None:
    """Version 2 to 4; None if it is split, sparse, or of a merge that is not finished."""
    signature, version, count = _HEADER.unpack_from(data)
    if signature != b"DIRC" or version not in (2, 3, 4):
        return None
    entries, position, path = [], _HEADER.size, b""
    for _ in range(min(count, MOST_ENTRIES + 1)):
        begin = position
        fields = _ENTRY.unpack_from(data, position)
        position += _ENTRY.size
        flags, extended = fields[11], 0
        if flags & _EXTENDED:
            (extended,) = struct.unpack_from(">H", data, position)
            position += 2
        if version == 4:
            stripped, position = _varint(data, position)
            end = data.index(b"\0", position)
            path = path[: len(path) - stripped] + data[position:end]
            position = end + 1
        else:
            end = data.index(b"\0", position)
            path = data[position:end]
            position = begin + (end - begin) // 8 * 8 + 8
        if flags & _STAGE:
            return None
        ignored = bool(flags & _ASSUME_VALID or extended & _SKIP_WORKTREE)
        entries.append(_Entry(path, fields[6], fields[2:4], fields[9], fields[10], ignored))
    if count > MOST_ENTRIES:
        return _Index(entries, None)
    tree, is_whole = None, True
    for name, body in _extensions(data, position):
        if name == b"TREE":
            tree = _root_tree(body)
        is_whole = is_whole and name not in (b"link", b"sdir")
    return _Index(entries, tree) if is_whole else None


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = data[position] & 0x7F
    while data[position] & 0x80:
        position += 1
        value = ((value + 1) << 7) | (data[position] & 0x7F)
    return value, position + 1


def _extensions(data: bytes, position: int) -> Iterator[tuple[bytes, bytes]]:
    while position + 8 <= len(data) - 20:  # the checksum comes last
        name, size = struct.unpack_from(">4sL", data, position)
        yield name, data[position + 8 : position + 8 + size]
        position += 8 + size


def _root_tree(body: bytes) -> bytes | None:
    """The object name of the whole tree; None if files were added or removed since."""
    _, _, rest = body.partition(b"\0")
    counts, _, rest = rest.partition(b"\n")
    return None if counts.startswith(b"-") else rest[:20]


# ---------------------------------------------------------------------- the files


def _changed_since_index(root: Path, index: _Index) -> list[str] | None:
    changed, hashed = [], 0
    folder, end = os.fsencode(root), time.monotonic() + MOST_SECONDS
    for number, entry in enumerate(index.entries):
        if number % YIELD_EVERY == 0:
            time.sleep(0)
            if time.monotonic() > end:
                return None
        if entry.ignored or entry.mode == _SUBMODULE:
            continue
        path = os.path.join(folder, entry.path)
        try:
            now = os.lstat(path)
        except FileNotFoundError:
            changed.append(entry)
            continue
        if entry.size and now.st_size & 0xFFFFFFFF != entry.size:
            changed.append(entry)
        elif not _is_unchanged(entry, now, index.written):
            hashed += 1
            if hashed > MOST_HASHED or now.st_size > MOST_BYTES:
                return None
            content = _content_of(path, now)
            if _blob_of(content) != entry.blob:
                if b"\r\n" in content or not index.stores_as_is:
                    return None  # git may have converted it before it was stored
                changed.append(entry)
    return [os.fsdecode(entry.path) for entry in changed]


def _is_unchanged(entry: _Entry, now: os.stat_result, written: tuple[int, int]) -> bool:
    """Whether size and time prove it.

    Not if the file was written as late as the index: then git notes the size 0, or nothing.
    """
    proves = entry.modified < written and now.st_size & 0xFFFFFFFF == entry.size
    return proves and _time_of(now) == entry.modified


def _time_of(now: os.stat_result) -> tuple[int, int]:
    seconds, nanoseconds = divmod(now.st_mtime_ns, 10**9)
    return seconds & 0xFFFFFFFF, nanoseconds


def _content_of(path: bytes, now: os.stat_result) -> bytes:
    if stat.S_ISLNK(now.st_mode):
        return os.readlink(path)
    return Path(os.fsdecode(path)).read_bytes()


def _blob_of(content: bytes) -> bytes:
    """The object name that git would give the content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).digest()


# ---------------------------------------------------------------------- the commit


def _changed_since_commit(git: Path, index: _Index) -> list[str] | None:
    """What is added to the index and not committed."""
    commit = head_of(git)
    content = None if commit is None else _object(git, commit)
    tree = None if content is None else bytes.fromhex(content[5:45].decode())
    if index.tree is not None and tree in (None, index.tree):
        return []
    committed = None if tree is None else _files_of(git, tree)
    if committed is None:
        return None
    staged = {entry.path: entry.blob for entry in index.entries}
    paths = sorted(staged.keys() | committed.keys())
    return [os.fsdecode(path) for path in paths if staged.get(path) != committed.get(path)]


def _files_of(git: Path, tree: bytes, folder: bytes = b"") -> dict[bytes, bytes] | None:
    """Object names by path; None if an object is packed."""
    content, position = _object(git, tree.hex()), 0
    if content is None:
        return None
    files: dict[bytes, bytes] = {}
    while position < len(content):
        end = content.index(b"\0", position)
        mode, _, name = content[position:end].partition(b" ")
        blob, position = content[end + 1 : end + 21], end + 21
        if mode != b"40000":
            files[folder + name] = blob
            continue
        inner = _files_of(git, blob, folder + name + b"/")
        if inner is None:
            return None
        files.update(inner)
    return files


def _object(git: Path, name: str) -> bytes | None:
    """The content of an object; None if it is packed."""
    path = common_folder(git) / "objects" / name[:2] / name[2:]
    if not path.is_file():
        return None
    return zlib.decompress(path.read_bytes()).partition(b"\0")[2]
