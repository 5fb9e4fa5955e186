"""The commit, the branch and the repository of a checked script, from the files of git."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from gradledger.provenance import common_folder, git_folder, head_of, repository

_BRANCH = "ref: refs/heads/"
_SECTION = re.compile(r'\[\s*remote\s+"(?P<name>[^"]+)"\s*\]')
_URL = re.compile(r'url\s*=\s*"?(?P<url>[^"]*?)"?\s*')
_SHORT = re.compile(r"(?P<host>[\w.@-]+):(?P<path>(?!/?/)[^\\]+)")  # git@host:path
_SECRETS = ("http", "https")  # schemes whose user may be a token


@dataclass(frozen=True)
class VersionControl:
    """Which version of which repository was checked."""

    repository: str  # a URI: of the remote if there is one, without credentials; or of the folder
    revision: str
    branch: str | None  # None if no branch is checked out


def version_control_of(script: str) -> VersionControl | None:
    """That of the repository that contains a script; None outside of one, or without a commit."""
    try:
        path = Path(script).resolve()
        folder = path if path.is_dir() else path.parent
        root, git = repository(folder), git_folder(folder)
        revision = None if git is None else head_of(git)
        if root is None or git is None or revision is None:
            return None
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        branch = head.removeprefix(_BRANCH) if head.startswith(_BRANCH) else None
        config = (common_folder(git) / "config").read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return None
    return VersionControl(_remote(config) or root.as_uri(), revision, branch)


def _remote(config: str) -> str | None:
    """The URI of ``origin``, or of the first other remote that has one."""
    remotes: dict[str, str] = {}
    name = ""
    for line in map(str.strip, config.splitlines()):
        if line.startswith("["):
            section = _SECTION.match(line)
            name = section["name"] if section else ""
        elif name and (entry := _URL.fullmatch(line)) and (uri := _uri(entry["url"])):
            remotes.setdefault(name, uri)
    return remotes.get("origin", next(iter(remotes.values()), None))


def _uri(url: str) -> str | None:
    """An absolute URI without credentials; None for a path or what cannot be parsed."""
    short = _SHORT.fullmatch(url)
    if short and "://" not in url:
        return f"ssh://{short['host']}/{quote(short['path'])}"
    parts = urlsplit(url)
    if not (parts.scheme and parts.netloc):
        return None
    user, _, host = parts.netloc.rpartition("@")
    user = "" if parts.scheme in _SECRETS else user.partition(":")[0]
    return parts._replace(netloc=f"{user}@{host}" if user else host, query="", fragment="").geturl()
