"""Every setting of the workbench: a flag of `legible serve`, or a `LEGIBLE_*` variable; flags win."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from platformdirs import user_data_path
from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from legible_core.errors import LegibleError


class Settings(BaseSettings):
    """Frozen once made. `Settings.load(...)` reports a bad value as one sentence."""

    model_config = SettingsConfigDict(env_prefix="LEGIBLE_", frozen=True, extra="ignore")

    data_dir: Path = Field(
        default_factory=lambda: user_data_path("legible", appauthor=False),
        description="Folder of the database, backups and scans; default: the platform's user-data folder.",
    )
    database_url: str | None = Field(
        default=None, description="SQLAlchemy address of a Postgres database; default: SQLite in the data folder."
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on; any other than loopback needs a token.")
    port: int = Field(default=8321, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    root_path: str = Field(default="", description="Path prefix under which a proxy serves the workbench.")
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Further host names under which browsers may reach it, such as a proxy's."
    )
    runs: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Folders of training runs to show besides those that `legible train` made known."
    )
    embed_from: str = Field(
        default="*", description="Sites whose pages may embed readings: origins divided by spaces, * for all, or none."
    )
    token: SecretStr | None = Field(
        default=None, description="Access token; made and printed when the host is not loopback and none is given."
    )
    workers: int = Field(default=1, ge=0, le=64, description="Worker processes that the server starts; 0 for none.")
    device: str = Field(default="auto", description="Where the worker computes: auto, cpu, cuda or cuda:N.")
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="The worker's compute type.")
    threads: int = Field(default=0, ge=0, description="The worker's CPU threads; 0 leaves it to torch.")
    cache_mebibytes: int = Field(default=512, ge=1, description="Size of the worker's cache of traces.")
    models_mebibytes: int = Field(
        default=16384, ge=1, description="Memory for checkpoints that the worker keeps loaded; the latest always stays."
    )
    lease_seconds: float = Field(default=30.0, gt=0, description="How long a silent worker keeps its job.")
    stall_seconds: float = Field(default=900.0, gt=0, description="A job that shows no progress this long is given up.")
    max_attempts: int = Field(default=3, ge=1, description="How many lost workers a job may cost before it fails.")
    poll_seconds: float = Field(default=1.0, gt=0, description="How often an idle worker looks when nobody wakes it.")

    @field_validator("root_path")
    @classmethod
    def _root_path(cls, value: str) -> str:
        value = value.rstrip("/")
        if value and not value.startswith("/"):
            raise ValueError("starts with a slash, for example /legible")
        return value

    @field_validator("allowed_hosts", "runs", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        """In a variable: names divided by commas."""
        return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value

    @field_validator("embed_from")
    @classmethod
    def _origins(cls, value: str) -> str:
        """They go into a header, so they are origins and nothing else."""
        found = value.split()
        if value not in ("*", "none"):
            for origin in found:
                if re.fullmatch(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?", origin) is None:
                    raise ValueError("origins such as https://lab.example divided by spaces, * or none")
        return " ".join(found) or "none"

    @field_validator("token")
    @classmethod
    def _no_empty_token(cls, value: SecretStr | None) -> SecretStr | None:
        """An empty variable gives no token: a request without one would match it."""
        return value if value is not None and value.get_secret_value().strip() else None

    @field_validator("device")
    @classmethod
    def _device(cls, value: str) -> str:
        if re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", value) is None:
            raise ValueError("one of auto, cpu, cuda or cuda:N")
        return value

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @classmethod
    def load(cls, **flags: Any) -> Settings:
        """Settings from the environment, overridden by the flags that are not None."""
        try:
            return cls(**{name: value for name, value in flags.items() if value is not None})
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]) if first["loc"] else "setting"
            reason = first["msg"].removeprefix("Value error, ")
            raise LegibleError(
                f"The setting {name} (LEGIBLE_{name.upper()}) cannot be {first['input']!r}: {reason}.",
                code="invalid_setting",
            ) from None

    @property
    def url(self) -> str:
        """The database's SQLAlchemy address."""
        if self.database_url is None:
            return f"sqlite:///{self.data_dir / 'legible.sqlite'}"
        for short in ("postgres://", "postgresql://"):
            if self.database_url.startswith(short):
                return "postgresql+psycopg://" + self.database_url.removeprefix(short)
        return self.database_url

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    def environment(self) -> dict[str, str]:
        """The same settings as variables, for a process that this one starts."""
        values: dict[str, str] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, SecretStr):
                value = value.get_secret_value()
            values[f"LEGIBLE_{name.upper()}"] = ",".join(value) if isinstance(value, tuple) else str(value)
        return values


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine only."""
    if host.strip("[]").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
