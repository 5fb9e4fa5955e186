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
SECRET_SETTINGS = ("db", "admin_token", "alert_channels")  # each may be in its own file

SettingNames = Callable[[], set[str]]  # called late: the settings classes import this module


def environment_variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"{PREFIX}{name}".upper()


class SecretFiles(PydanticBaseSettingsSource):
    """``GRADLEDGER_DB_FILE`` names a file that contains the value of ``GRADLEDGER_DB``."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The content of the file, if one is named. Raises ValueError if it cannot be read."""
        variable = environment_variable(field_name)
        path = os.environ.get(f"{variable}_FILE")
        if field_name not in SECRET_SETTINGS or not path:
            return None, field_name, False
        if os.environ.get(variable):
            raise ValueError(f"{variable} and {variable}_FILE are both set. Set one of them")
        try:
            return Path(path).read_text(encoding="utf-8").strip(), field_name, False
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{variable}_FILE={path}: {error}") from error

    def __call__(self) -> dict[str, Any]:
        """The settings that are in files."""
        fields = self.settings_cls.model_fields
        values = {name: self.get_field_value(field, name)[0] for name, field in fields.items()}
        return {name: value for name, value in values.items() if value is not None}


class ConfigurationFile(TomlConfigSettingsSource):
    """One TOML file with settings by name. Raises ValueError for an unknown name."""

    def __init__(self, settings_cls: type[BaseSettings], names: SettingNames) -> None:
        self.path = configuration_file()
        if "GRADLEDGER_CONFIG" in os.environ and not self.path.is_file():
            raise ValueError(f"GRADLEDGER_CONFIG={self.path}: there is no such file")
        try:
            super().__init__(settings_cls, self.path)
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.path}: {error}") from error
        unknown = sorted(set(self.toml_data) - names())
        if unknown:
            raise ValueError(
                f"{self.path}: there is no setting {', '.join(unknown)}. "
                "`gradledger config` lists all settings"
            )


def sources(
    settings_cls: type[BaseSettings], arguments: PydanticBaseSettingsSource, names: SettingNames
) -> tuple[PydanticBaseSettingsSource, ...]:
    """All sources in descending precedence."""
    return (
        arguments,
        EnvSettingsSource(settings_cls),
        SecretFiles(settings_cls),
        ConfigurationFile(settings_cls, names),
    )


def origins(settings_cls: type[BaseSettings], names: SettingNames) -> dict[str, str]:
    """The source of each setting, as text; settings with their default are absent."""
    result: dict[str, str] = {}
    for describe, values in reversed(_values_by_source(settings_cls, names)):
        result |= {name: describe(name) for name in values}
    return result


def origin(settings_cls: type[BaseSettings], names: SettingNames, *path: str) -> str | None:
    """The source of a setting, or of the item under further keys in it; None for a default."""
    for describe, values in _values_by_source(settings_cls, names):
        if _contains(values, path):
            return describe(path[0])
    return None


def _values_by_source(
    settings_cls: type[BaseSettings], names: SettingNames
) -> list[tuple[Callable[[str], str], dict[str, Any]]]:
    """The values of each source with a function that names it, in descending precedence."""
    file = ConfigurationFile(settings_cls, names)
    return [
        (environment_variable, EnvSettingsSource(settings_cls)()),
        (lambda name: f"{environment_variable(name)}_FILE", SecretFiles(settings_cls)()),
        (lambda _: str(file.path), file()),
    ]


def _contains(values: Any, path: tuple[str, ...]) -> bool:
    if not path:
        return True
    return isinstance(values, dict) and path[0] in values and _contains(values[path[0]], path[1:])
