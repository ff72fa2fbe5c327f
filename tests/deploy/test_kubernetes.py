"""The manifests of deploy/kubernetes are what the API takes, and fit each other, the image and the
configuration. No cluster runs them here."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from penstock.cli.config import load

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/cluster.md").read_text()
IMAGE = (ROOT / "deploy/Dockerfile.spark").read_text()
SCHEMA: Any = Draft202012Validator(
    json.loads(Path(__file__).with_name("kubernetes.schema.json").read_text())
)
OBJECTS: list[dict[str, Any]] = [
    made
    for file in sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
    for made in yaml.safe_load_all(file.read_text())
]


def of_kind(kind: str) -> dict[str, Any]:
    """The only object of that kind."""
    (found,) = (made for made in OBJECTS if made["kind"] == kind)
    return found


APPLICATION = of_kind("SparkApplication")
SPEC = APPLICATION["spec"]


@pytest.mark.parametrize("made", OBJECTS, ids=lambda made: made["kind"])
def test_every_object_is_one_of_its_kind(made: dict[str, Any]) -> None:
    SCHEMA.validate(made)


def misnamed(spec: dict[str, Any]) -> None:
    spec["driver"]["serviceAccountName"] = spec["driver"].pop("serviceAccount")


def mistyped(spec: dict[str, Any]) -> None:
    spec["executor"]["instances"] = "2"


def unknown_mode(spec: dict[str, Any]) -> None:
    spec["mode"] = "in-cluster"


def missing(spec: dict[str, Any]) -> None:
    del spec["sparkVersion"]


@pytest.mark.parametrize("spoil", [misnamed, mistyped, unknown_mode, missing])
def test_what_the_operator_would_not_take_is_found(spoil: Callable[[dict[str, Any]], None]) -> None:
    spoiled = copy.deepcopy(APPLICATION)
    spoil(spoiled["spec"])
    assert not SCHEMA.is_valid(spoiled)


def test_all_objects_are_in_the_namespace_that_is_made() -> None:
    namespace = of_kind("Namespace")["metadata"]["name"]
    others = [made for made in OBJECTS if made["kind"] != "Namespace"]
    assert {made["metadata"]["namespace"] for made in others} == {namespace}


def test_the_driver_is_who_the_role_is_bound_to() -> None:
    binding, account = of_kind("RoleBinding"), of_kind("ServiceAccount")["metadata"]
    assert SPEC["driver"]["serviceAccount"] == account["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert binding["roleRef"]["name"] == of_kind("Role")["metadata"]["name"]
    assert "serviceAccount" not in SPEC["executor"]


def test_what_is_mounted_and_read_is_there_and_the_secret_is_made_as_the_page_says() -> None:
    volumes = {volume["name"]: volume for volume in SPEC["volumes"]}
    mounts = {mount["name"]: mount for mount in SPEC["driver"]["volumeMounts"]}
    assert set(mounts) == set(volumes)
    configuration = of_kind("ConfigMap")
    assert volumes["configuration"]["configMap"]["name"] == configuration["metadata"]["name"]
    assert mounts["configuration"]["subPath"] in configuration["data"]
    environment = {variable["name"]: variable for variable in SPEC["driver"]["env"]}
    token = environment["PENSTOCK_TOKEN"]["valueFrom"]["secretKeyRef"]
    (certificate,) = volumes["trust"]["secret"]["items"]
    assert token["name"] == volumes["trust"]["secret"]["secretName"]
    folder = mounts["trust"]["mountPath"]
    assert environment["PENSTOCK_TLS_CA"]["value"] == f"{folder}/{certificate['path']}"
    said = re.search(r"kubectl create secret generic (\S+) (.*)", PAGE.replace("\\\n", ""))
    assert said is not None
    assert said[1] == token["name"]
    keys = {option.split("=")[1] for option in said[2].split() if option.startswith("--from-file")}
    assert keys == {token["key"], certificate["key"]}


def test_the_driver_runs_a_pipeline_of_its_configuration(tmp_path: Path) -> None:
    name, *options = SPEC["arguments"]
    mounted = SPEC["driver"]["volumeMounts"][0]
    assert options[options.index("--config") + 1] == mounted["mountPath"]
    file = tmp_path / mounted["subPath"]
    file.write_text(of_kind("ConfigMap")["data"][mounted["subPath"]])
    settings = load(file)
    assert name in settings.pipelines
    # Pods come and go: a table in one would go with it.
    assert "://" in getattr(settings.pipelines[name], "path", "")


def test_the_image_has_what_the_manifest_starts_and_the_spark_that_was_tested() -> None:
    program = SPEC["mainApplicationFile"].removeprefix("local://")
    assert f"COPY deploy/{Path(program).name} {program}\n" in IMAGE
    assert (ROOT / "deploy" / Path(program).name).is_file()
    locked = re.search(r"^pyspark==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert locked is not None
    assert SPEC["sparkVersion"] == locked[1]
    assert f"docker build -t {SPEC['image']} -f deploy/Dockerfile.spark ." in IMAGE
    (user,) = re.findall(r"^USER (\d+)$", IMAGE, re.MULTILINE)
    for role in ("driver", "executor"):
        assert SPEC[role]["securityContext"]["runAsUser"] == int(user)
