"""How the archive is configured."""

from pydantic import Field

from penstock.config import Bytes, Config, Seconds


class ArchiveConfig(Config):
    """Keep what the log held as Parquet, before retention removes it. Without a path: off."""

    path: str | None = Field(
        default=None,
        min_length=1,
        description="A folder, or a URL that pyarrow knows: s3://, gs://, abfs://, hdfs://, "
        "file://; with `penstock[fsspec]` one of fsspec, as sftp:// or az://. One log has it for "
        "itself.",
    )
    range_age: Seconds = Field(
        default=3600.0,
        gt=0,
        description="Archive what has waited so long, however little it is.",
    )
    range_bytes: Bytes = Field(
        default=256 << 20,
        gt=0,
        description="Archive when so much waits; a file holds about so much, before compression. "
        "A larger commit comes whole. Never more than a quarter of retention_bytes.",
    )
    hold: Seconds = Field(
        default=3 * 86400.0,
        gt=0,
        description="Keep what is not archived in the log for so long after archiving last "
        "succeeded, whatever retention says. Then retention goes on, and the archive has a gap.",
    )
    hold_bytes: Bytes = Field(
        default=10 << 30,
        ge=0,
        description="For that, the log may take so much more than retention_bytes; never more "
        "than a quarter of it.",
    )
