"""Jars for Spark's class path: from the registry that Maven is set up with, pinned by hash."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests_support.servers.packages import (
    ServerUnavailableError,
    locked,
    servers_directory,
)

_PROJECT: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>penstock</groupId><artifactId>jars</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY: Final = """<dependency>
<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
</dependency>"""


@dataclass(frozen=True, kw_only=True)
class Jars:
    """Jars that are used together."""

    name: str
    version: str
    sha256: Mapping[str, str]
    """By `group:artifact:version`."""

    @property
    def home(self) -> Path:
        """Where they are installed."""
        return servers_directory() / f"{self.name}-{self.version}"

    def paths(self) -> list[Path]:
        """The files. Raises ServerUnavailableError when they are not installed; nothing is
        downloaded here."""
        found = [self.home / _file(jar) for jar in self.sha256]
        if not all(path.exists() for path in found):
            raise ServerUnavailableError(
                f"the jars of {self.name} {self.version} are not installed in {self.home}. Run "
                f"`python -m tests_support.servers install`."
            )
        return found


DELTA: Final = Jars(
    name="delta",
    version="4.4.0",
    sha256={
        "io.delta:delta-spark_2.13:4.4.0": (
            "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"
        ),
        "io.delta:delta-storage:4.4.0": (
            "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"
        ),
        "io.delta:delta-kernel-api:4.4.0": (
            "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11"
        ),
        "io.delta:delta-kernel-defaults:4.4.0": (
            "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b"
        ),
        "io.delta:delta-kernel-unitycatalog:4.4.0": (
            "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa"
        ),
        "io.unitycatalog:unitycatalog-client:0.6.0": (
            "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19"
        ),
    },
)
"""Delta Lake for Spark 4.2: what Spark does not bring itself."""


def install_jars(jars: Jars) -> Path:
    """Install jars unless they are there already; their folder.

    Safe to call from several processes at once. Raises ServerUnavailableError with the reason when
    they cannot be had, or are not those that were pinned.
    """
    directory = servers_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / f"{jars.home.name}.lock"):
        if not jars.home.exists():
            # Renamed into place when complete: a half install must never look whole.
            with tempfile.TemporaryDirectory(dir=directory, prefix=f".{jars.name}-") as work:
                target = Path(work) / "install"
                _fetch(jars, Path(work), target)
                for jar, expected in jars.sha256.items():
                    found = hashlib.sha256((target / _file(jar)).read_bytes()).hexdigest()
                    if found != expected:
                        raise ServerUnavailableError(
                            f"{jar} has the hash {found}, and not the pinned {expected}. Nothing "
                            f"was installed."
                        )
                target.rename(jars.home)
    return jars.home


def _fetch(jars: Jars, work: Path, target: Path) -> None:
    program = shutil.which("mvn")
    if program is None:
        raise ServerUnavailableError(
            "there is no Maven (mvn). Run `apt-get install maven` as root, or install what your "
            "system has for it."
        )
    dependencies: list[str] = []
    for jar in jars.sha256:
        group, artifact, version = jar.split(":")
        dependencies.append(_DEPENDENCY.format(group=group, artifact=artifact, version=version))
    (work / "pom.xml").write_text(_PROJECT.format(dependencies="".join(dependencies)))
    command = [program, "--batch-mode", "--quiet", "dependency:copy-dependencies"]
    outcome = subprocess.run(
        [*command, f"-DoutputDirectory={target}"],
        cwd=work,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if outcome.returncode != 0:
        raise ServerUnavailableError(
            f"`mvn dependency:copy-dependencies` ended with {outcome.returncode}. It said: "
            f"{outcome.stdout.strip()[-2000:]}"
        )


def _file(jar: str) -> str:
    _, artifact, version = jar.split(":")
    return f"{artifact}-{version}.jar"
