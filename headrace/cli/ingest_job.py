"""Settings and job of the commands that read raw messages: `headrace ingest run` and `headrace dlq replay`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.cli.options import parse_settings
from headrace.cli.session import require_cluster
from headrace.connectors.arrow_start import keep_pandas_out

if TYPE_CHECKING:
    from headrace.connectors.formats.interface import FormatOptions
    from headrace.pipeline.job import IngestJob
    from headrace.settings import Settings


def ingest_settings(
    cluster: str | None, bootstrap: str | None, time_resolution: str | None, settings: list[str] | None
) -> Settings:
    """The settings of a command that reads raw messages. Raises ClusterUnnamed, SettingsInvalid."""
    from headrace.settings import load_settings

    keep_pandas_out()
    loaded = load_settings(
        {
            "cluster.name": cluster,
            "cluster.bootstrap": bootstrap,
            "write.time_resolution": time_resolution,
            "kafka": parse_settings(settings),
        }
    )
    require_cluster(loaded)
    return loaded


def ingest_job(
    settings: Settings, topic: str, database: str, form: str, options: FormatOptions, any_time: bool
) -> IngestJob:
    """The job of such a command. Raises OptionsError."""
    from headrace.connectors.formats.interface import message_format
    from headrace.connectors.formats.parser import check_options
    from headrace.pipeline.job import IngestJob
    from headrace.schemas.tables import TimeResolution

    limits = settings.ingest
    if options.schemas.registry is not None:
        place = replace(options.schemas, user=limits.registry_user, password=limits.registry_password)
        options = replace(options, schemas=place)
    job = IngestJob(
        settings.cluster.name,
        settings.cluster.bootstrap,
        topic,
        database,
        message_format(form),
        options,
        tuple(sorted(settings.kafka.items())),
        settings.write.compression,
        TimeResolution(settings.write.time_resolution),
        any_time,
    )
    # Before there is a checkpoint, which belongs to one format.
    check_options(job.format, job.options)
    return job
