"""Generates the reference from the code when the documentation is built.

MkDocs calls `on_config` and `on_files`; each page is a function below.
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
from gradledger_monitor.api import schemas
from gradledger_monitor.app import create_app
from gradledger_monitor.cli import app as commands_app
from gradledger_monitor.config.settings import Settings

METHODS = ("get", "put", "post", "patch", "delete")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """State the version at the foot of each page."""
    config.copyright = f"gradledger {gradledger.__version__}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to those on disk."""
    for name, page in PAGES.items():
        uri = f"reference/{name}.md"
        files.append(File.generated(config, uri, content="\n".join(page()) + "\n"))
    return files


# ---------------------------------------------------------------- commands


def commands() -> Iterator[str]:
    """Every command with its arguments and options."""
    yield "# Commands\n"
    yield "`gradledger --help` lists the commands; `gradledger COMMAND --help` describes one of them.\n"
    yield "## gradledger run\n"
    yield "Start a command and its child processes with the hooks on. This needs only the hooks.\n"
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
    description = _cell(getattr(parameter, "help", None) or "")
    names = parameter.opts + parameter.secondary_opts
    if parameter.param_type_name == "argument":
        names = [_word(parameter)]
    elif parameter.default not in (None, False, (), []) and not callable(parameter.default):
        default = getattr(parameter.default, "value", parameter.default)
        description += f" Default: `{default}`."
    return f"| {', '.join(f'`{_cell(name)}`' for name in names)} | {description} |"


# ---------------------------------------------------------------- Python


def python() -> Iterator[str]:
    """The Python interface for training scripts, and the environment variables of the hooks."""
    yield "# Python\n"
    yield "Everything is in `import gradledger`, which loads its parts when they are first used.\n"
    yield from _callable("gradledger.watch", gradledger.watch)
    yield f"## gradledger.Ledger\n\n{_prose(inspect.getdoc(Ledger) or '')}\n"
    for name, method in vars(Ledger).items():
        if not name.startswith("_") and callable(method):
            yield from _callable(f"ledger.{name}", method, "###")
    yield from _callable("gradledger.load", gradledger.load)
    yield f"## gradledger.FindingError\n\n{_prose(inspect.getdoc(gradledger.FindingError) or '')}\n"
    yield "## Environment variables of the hooks\n"
    yield "The training process reads them. An invalid value is reported once on stderr and ignored.\n"
    source = inspect.getsource(HookSettings.from_environment)
    for name in re.findall(r'read\("(\w+)"', source):
        yield f"- `GRADLEDGER_{name}`: {VARIABLES[name]}"


VARIABLES = {
    "URL": "URL of the service; default `http://127.0.0.1:4777`",
    "TOKEN": "access token of the service, with the scope `ingest`",
    "RUN": "run id that all processes of one job share; `gradledger run` sets it",
    "NAME": "name of the run; default: name of the script",
    "PROJECT": "project of the run; default `default`",
    "TAGS": "tags of the run, separated by commas; `gradledger run --tag` sets it",
    "OVERHEAD": "share of the training thread's time that the hooks may take; default 0.0025. If steps are "
    "too short for that, steps after the first 256 are sampled. `full` records every step",
    "ON_FINDING": "action of the training process when the service reports a finding: `warn` (default), "
    "`stop`, `stop:warning` or `off`",
    "PROXY": "URL of a proxy for gradledger, or `off`; by default, `HTTPS_PROXY`, `HTTP_PROXY`, "
    "`ALL_PROXY` and `NO_PROXY` apply",
    "SOURCE": "`off` sends the file and the line of the calls that findings point at, but no source text; default `on`",
    "SUMMARY": "`on` writes the URL of the run to stderr at its start, and the verdict and the findings at its end; "
    "`gradledger run` sets it; default `off`",
    "SPOOL": "folder for records that could not be sent, or `off`; default `~/.gradledger/spool`",
    "SPOOL_BYTES": "limit of the spool files of one process, in bytes; default 268435456 (256 MiB)",
}


def _callable(name: str, function: Callable[..., Any], level: str = "##") -> Iterator[str]:
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    words = [_argument(parameter) for parameter in parameters]
    keyword_only = [i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY]
    if keyword_only:
        words.insert(keyword_only[0], "*")
    body = "".join(f"    {word},\n" for word in words)
    yield f"{level} {name}\n"
    yield f"```python\n{name}(\n{body})\n```\n" if body else f"```python\n{name}()\n```\n"
    yield f"{_prose(inspect.getdoc(function) or '')}\n"


def _argument(parameter: inspect.Parameter) -> str:
    stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}: {parameter.annotation}{default}"


# ---------------------------------------------------------------- HTTP


def http() -> Iterator[str]:
    """The routes of the OpenAPI document."""
    app = create_app(Settings.model_construct(db="sqlite://"))
    document = app.openapi()
    yield "# HTTP\n"
    yield "The service publishes its OpenAPI document at `/api/v1/openapi.json`; this page is a summary.\n"
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
    statuses = ", ".join(f"`{status}`" for status in sorted(operation["responses"]))
    yield f"Responses: {statuses}.\n"


# ---------------------------------------------------------------- records


def wire() -> Iterator[str]:
    """The fields of every record that a training process sends, and of the replies."""
    yield "# Records\n"
    description = _prose(inspect.getdoc(records) or "").split("\n", 2)[2].strip()
    yield f"The wire format, version {records.WIRE_VERSION}.\n\n{description}\n"
    for name, kind in vars(records).items():
        if inspect.isclass(kind) and is_dataclass(kind) and kind.__module__ == records.__name__:
            yield from _record(name, kind, [(f.name, str(f.type)) for f in fields(kind)])
    yield "## Replies\n"
    yield "What `POST /api/v1/records` returns for a batch.\n"
    for model in (schemas.BatchResult, schemas.RunStateNotice, schemas.FindingNotice):
        yield from _record(model.__name__, model, list(model.__annotations__.items()))


def _record(name: str, kind: Any, types: list[tuple[str, str]]) -> Iterator[str]:
    yield f"## {name}\n\n{_prose(inspect.getdoc(kind) or '')}\n"
    comments = dict(re.findall(r"^    (\w+):.*?  # (.+)$", inspect.getsource(kind), re.M))
    yield from ("| field | type | |", "|---|---|---|")
    for field, field_type in types:
        yield f"| `{field}` | {_cell(field_type)} | {_cell(comments.get(field, ''))} |"
    yield ""


# ---------------------------------------------------------------- text


def _prose(text: str) -> str:
    """Docstring text as Markdown: single backticks."""
    return textwrap.dedent(text).replace("``", "`")


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("\n", " ").replace("|", "&#124;")


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "python": python,
    "http": http,
    "records": wire,
}
