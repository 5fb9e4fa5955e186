"""Where settings come from: the command line, the environment, secrets in files, a TOML file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    TomlConfigSettingsSource,
)

from gradledger_monitor.common.paths import configuration_file

PREFIX = "GRADLEDGER_"
SECRET_SETTINGS = ("db", "admin_token", "alert_channels")  # may stand in files of their own

Known = Callable[[], set[str]]


def environment_variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"{PREFIX}{name}".upper()


class SecretFiles(PydanticBaseSettingsSource):
    """``GRADLEDGER_DB_FILE`` names a file that holds what ``GRADLEDGER_DB`` would say."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The content of the file, if one is named. Raises ValueError if it cannot be read."""
        place = os.environ.get(f"{environment_variable(field_name)}_FILE")
        if field_name not in SECRET_SETTINGS or not place:
            return None, field_name, False
        if os.environ.get(environment_variable(field_name)):
            both = f"{environment_variable(field_name)} and {environment_variable(field_name)}_FILE"
            raise ValueError(f"{both} are both set: say it once")
        try:
            return Path(place).read_text(encoding="utf-8").strip(), field_name, False
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{environment_variable(field_name)}_FILE={place}: {error}") from error

    def __call__(self) -> dict[str, Any]:
        """All that files say."""
        fields = self.settings_cls.model_fields
        found = {name: self.get_field_value(field, name)[0] for name, field in fields.items()}
        return {name: value for name, value in found.items() if value is not None}


class ConfigurationFile(TomlConfigSettingsSource):
    """One TOML file with settings by name. Raises ValueError for a name that is none."""

    def __init__(self, settings_cls: type[BaseSettings], known: Known) -> None:
        self.place = configuration_file()
        if "GRADLEDGER_CONFIG" in os.environ and not self.place.is_file():
            raise ValueError(f"GRADLEDGER_CONFIG={self.place}: there is no such file")
        try:
            super().__init__(settings_cls, self.place)
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.place}: {error}") from error
        unknown = sorted(set(self.toml_data) - known())
        if unknown:
            raise ValueError(f"{self.place}: there is no setting {', '.join(unknown)}")


def sources(
    settings_cls: type[BaseSettings], given: PydanticBaseSettingsSource, known: Known
) -> tuple[PydanticBaseSettingsSource, ...]:
    """The first that knows a setting decides."""
    return (
        given,
        EnvSettingsSource(settings_cls),
        SecretFiles(settings_cls),
        ConfigurationFile(settings_cls, known),
    )


def origins(settings_cls: type[BaseSettings], known: Known) -> dict[str, str]:
    """Where each setting would be taken from, in words; what nobody says is not in it."""
    found: dict[str, str] = {}
    for place, said in reversed(_sayings(settings_cls, known)):
        found |= {name: place(name) for name in said}
    return found


def origin(settings_cls: type[BaseSettings], known: Known, *path: str) -> str | None:
    """Where a setting would be taken from, or what stands in it under further names."""
    for place, said in _sayings(settings_cls, known):
        if _says(said, path):
            return place(path[0])
    return None


def _sayings(
    settings_cls: type[BaseSettings], known: Known
) -> list[tuple[Callable[[str], str], dict[str, Any]]]:
    """What is said, and where in words; the first that knows a setting decides."""
    file = ConfigurationFile(settings_cls, known)
    return [
        (environment_variable, EnvSettingsSource(settings_cls)()),
        (lambda name: f"{environment_variable(name)}_FILE", SecretFiles(settings_cls)()),
        (lambda _: str(file.place), file()),
    ]


def _says(said: Any, path: tuple[str, ...]) -> bool:
    if not path:
        return True
    return isinstance(said, dict) and path[0] in said and _says(said[path[0]], path[1:])
