"""Writes the reference from the code while the documentation is built: nothing to keep in step.

MkDocs calls `on_files`; each page is a function below.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import gradledger
from gradledger import records
from gradledger.api import Ledger
from gradledger.settings import Settings as HookSettings
from gradledger_monitor.app import create_app
from gradledger_monitor.cli import app as commands_app
from gradledger_monitor.config.settings import Settings

METHODS = ("get", "put", "post", "patch", "delete")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are written here to those on the disk."""
    for name, page in PAGES.items():
        uri = f"reference/{name}.md"
        files.append(File.generated(config, uri, content="\n".join(page()) + "\n"))
    return files


# ---------------------------------------------------------------- commands


def commands() -> Iterator[str]:
    """Every command with its arguments and options."""
    yield "# Commands\n"
    yield "`gradledger --help` lists them, and `gradledger COMMAND --help` tells the same as this page.\n"
    yield "## gradledger run\n"
    yield "Start any command with the hooks on, its children too. It needs the hooks alone.\n"
    yield "    gradledger run [--name N] [--project P] [--tag T] [--url URL] -- COMMAND ...\n"
    root = typer.main.get_command(commands_app)
    yield from _subcommands(root, "gradledger")


def _subcommands(group: Any, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _subcommands(command, f"{path} {name}")
        else:
            yield from _command(command, f"{path} {name}")


def _command(command: Any, path: str) -> Iterator[str]:
    yield f"## {path}\n"
    yield f"{_prose(inspect.cleandoc(command.help or ''))}\n"
    parameters = [p for p in command.params if "--help" not in p.opts]
    words = [_word(p) for p in parameters if p.param_type_name == "argument"]
    options = ["[OPTIONS]"] if len(words) < len(parameters) else []
    yield f"    {' '.join([path, *options, *words])}\n"
    if parameters:
        yield from ("| | |", "|---|---|", *map(_parameter, parameters), "")


def _word(argument: Any) -> str:
    word = argument.name.strip("_").upper() + ("..." if argument.nargs == -1 else "")
    return word if argument.required else f"[{word}]"


def _parameter(parameter: Any) -> str:
    told = _cell(getattr(parameter, "help", None) or "")
    shown = parameter.opts + parameter.secondary_opts
    if parameter.param_type_name == "argument":
        shown = [_word(parameter)]
    elif parameter.default not in (None, False, (), []) and not callable(parameter.default):
        default = getattr(parameter.default, "value", parameter.default)
        told += f" Default: `{default}`."
    return f"| {', '.join(f'`{_cell(name)}`' for name in shown)} | {told} |"


# ---------------------------------------------------------------- Python


def python() -> Iterator[str]:
    """What a training script may call, and the environment variables of the hooks."""
    yield "# Python\n"
    yield "Everything is in `import gradledger`, which loads nothing before it is used.\n"
    yield from _callable("gradledger.watch", gradledger.watch)
    yield f"## gradledger.Ledger\n\n{_prose(inspect.getdoc(Ledger) or '')}\n"
    for name, method in vars(Ledger).items():
        if not name.startswith("_") and callable(method):
            yield from _callable(f"ledger.{name}", method, "###")
    yield from _callable("gradledger.load", gradledger.load)
    yield f"## gradledger.FindingError\n\n{_prose(inspect.getdoc(gradledger.FindingError) or '')}\n"
    yield "## Environment variables of the hooks\n"
    yield "Read in the training process. A value that makes no sense is said once on stderr, and not used.\n"
    source = inspect.getsource(HookSettings.from_environment)
    for name in re.findall(r'said\("(\w+)"', source):
        yield f"- `GRADLEDGER_{name}`: {VARIABLES[name]}"


VARIABLES = {
    "URL": "where the service listens; `http://127.0.0.1:4777` unless given",
    "TOKEN": "the token that the service asks for",
    "RUN": "the identity that all processes of one job share; `gradledger run` sets it",
    "NAME": "what to call the run; the script's name unless given",
    "PROJECT": "what it belongs to",
    "TAGS": "words to find the run by, with commas; `gradledger run --tag` sets it",
    "OVERHEAD": "the share of the training thread's time that the hooks may take, 0.0025 unless given: "
    "of steps too short for that, some are let pass after the first 256; `full` watches every step",
    "ON_FINDING": "`warn` (unless given), `stop`, `stop:warning` or `off`: what the training process "
    "does when the service finds something",
    "PROXY": "the URL of a proxy for gradledger alone, or `off`; unless given, `HTTPS_PROXY`, `HTTP_PROXY`, "
    "`ALL_PROXY` and `NO_PROXY` apply",
    "SPOOL": "the folder for records that could not be sent, or `off`",
    "SPOOL_BYTES": "bytes that one process may keep there",
}


def _callable(name: str, called: Callable[..., Any], level: str = "##") -> Iterator[str]:
    parameters = [p for p in inspect.signature(called).parameters.values() if p.name != "self"]
    words = [_argument(parameter) for parameter in parameters]
    by_name = [i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY]
    if by_name:
        words.insert(by_name[0], "*")
    body = "".join(f"    {word},\n" for word in words)
    yield f"{level} {name}\n"
    yield f"```python\n{name}(\n{body})\n```\n" if body else f"```python\n{name}()\n```\n"
    yield f"{_prose(inspect.getdoc(called) or '')}\n"


def _argument(parameter: inspect.Parameter) -> str:
    stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}: {parameter.annotation}{default}"


# ---------------------------------------------------------------- HTTP


def http() -> Iterator[str]:
    """Every route of the OpenAPI document."""
    app = create_app(Settings.model_construct(db="sqlite://"))
    document = app.openapi()
    yield "# HTTP\n"
    yield "The service describes itself at `/api/v1/openapi.json`; this page is that document, shortened.\n"
    yield "Errors are problem documents (RFC 9457): `title`, `status`, `detail`.\n"
    for path, item in sorted(document["paths"].items()):
        for method in METHODS:
            if method in item:
                yield from _route(method.upper(), path, item[method])


def _route(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"## {method} {path}\n"
    yield f"{_prose(operation.get('description') or operation.get('summary', ''))}\n"
    rows = [
        f"| `{p['name']}` | {p['in']} | {_cell(p.get('description', ''))} |"
        for p in operation.get("parameters", [])
    ]
    if rows:
        yield from ("| parameter | in | |", "|---|---|---|", *rows, "")
    answers = ", ".join(f"`{status}`" for status in sorted(operation["responses"]))
    yield f"Answers: {answers}.\n"


# ---------------------------------------------------------------- records


def wire() -> Iterator[str]:
    """Every field that a training process sends."""
    yield "# Records\n"
    told = _prose(inspect.getdoc(records) or "").split("\n", 2)[2].strip()
    yield f"The wire format, version {records.WIRE_VERSION}.\n\n{told}\n"
    for name, kind in vars(records).items():
        if inspect.isclass(kind) and is_dataclass(kind) and kind.__module__ == records.__name__:
            yield from _record(name, kind)


def _record(name: str, kind: Any) -> Iterator[str]:
    yield f"## {name}\n\n{_prose(inspect.getdoc(kind) or '')}\n"
    comments = dict(re.findall(r"^    (\w+):.*?  # (.+)$", inspect.getsource(kind), re.M))
    yield from ("| field | type | |", "|---|---|---|")
    for field in fields(kind):
        kind_of = str(field.type).replace("|", "&#124;")
        yield f"| `{field.name}` | {kind_of} | {_cell(comments.get(field.name, ''))} |"
    yield ""


# ---------------------------------------------------------------- words


def _prose(text: str) -> str:
    """Double backticks and line ends as Markdown has them."""
    return textwrap.dedent(text).replace("``", "`")


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("\n", " ").replace("|", "&#124;")


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "python": python,
    "http": http,
    "records": wire,
}
