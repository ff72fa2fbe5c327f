"""What server reflection tells: the descriptors of our service and of puller.proto's."""

from typing import Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from penstock._generated.penstock.v1 import captures_pb2, penstock_pb2

SERVICES: Final = (
    "penstock.v1.PullerService",
    "PullerService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1alpha.ServerReflection",
)

_PULLER_FIELDS_MAX: Final = 10
"""puller.proto's fields are our first ones (1 to 10, of the request 1 to 3); ours begin above."""


def descriptor_pool() -> DescriptorPool:
    """A pool of its own: an application may register the names of puller.proto, which have no
    package, in the process-wide pool, and the two would clash."""
    pool = DescriptorPool()
    for module in (penstock_pb2, captures_pb2, health_pb2, reflection_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(puller_file().SerializeToString())
    return pool


def puller_file() -> descriptor_pb2.FileDescriptorProto:
    """puller.proto, as the part of ours that it is."""
    ours = descriptor_pb2.FileDescriptorProto.FromString(penstock_pb2.DESCRIPTOR.serialized_pb)
    puller = descriptor_pb2.FileDescriptorProto(name="puller.proto", syntax="proto3")
    for message in ours.message_type:
        if message.name == "EventBatch":
            continue
        kept = puller.message_type.add(name=message.name)
        for field in message.field:
            if field.number <= _PULLER_FIELDS_MAX:
                kept.field.append(field)
                if field.type_name:
                    kept.field[-1].type_name = _without_package(field.type_name)
    for service in ours.service:
        kept_service = puller.service.add(name=service.name)
        for method in service.method:
            if method.name == "Subscribe":
                kept_service.method.append(method)
                kept_service.method[-1].input_type = _without_package(method.input_type)
                kept_service.method[-1].output_type = _without_package(method.output_type)
    return puller


def _without_package(name: str) -> str:
    return name.replace(".penstock.v1.", ".")
