"""Devices of each pod: messages of the kubelet's pod-resources API, version 1, and protobuf's wire format.

ListPodResourcesResponse { pod_resources = 1 }, PodResources { name = 1, namespace = 2, containers = 3 },
ContainerResources { name = 1, devices = 2, dynamic_resources = 5 }, ContainerDevices { resource_name = 1, device_ids =
2 }, DynamicResource { claim_resources = 4 }, ClaimResource { cdi_devices = 1, driver_name = 2, device_name = 4 },
CDIDevice { name = 1 }.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

KUBELET_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
LIST_METHOD = "/v1.PodResourcesLister/List"
_DRA_DRIVER = "gpu.nvidia.com"
_CDI_DEVICE = re.compile(r"gpu-\d+(?:-mig-.+)?$")


@dataclass(frozen=True, slots=True)
class PodDevice:
    """A device that the kubelet gave to a container.

    Attributes:
        name: as the device plugin or the DRA driver calls it: "GPU-...", "GPU-...::3", "gpu-0".
    """

    namespace: str
    pod: str
    container: str
    name: str
    is_claim: bool = False


def parse_pod_devices(response: bytes) -> list[PodDevice]:
    """All devices of all pods in the kubelet's answer, GPUs or not.

    Raises:
        WireError: it is not such a message.
    """
    found: list[PodDevice] = []
    for number, pod in protobuf_fields(response):
        if number != 1:
            continue
        name = namespace = ""
        containers: list[memoryview] = []
        for part, value in protobuf_fields(pod):
            if part == 1:
                name = protobuf_text(value)
            elif part == 2:
                namespace = protobuf_text(value)
            elif part == 3:
                containers.append(value)
        for container in containers:
            found += _devices_of_container(namespace, name, container)
    return found


def _devices_of_container(namespace: str, pod: str, container: memoryview) -> list[PodDevice]:
    name = ""
    plugin: list[str] = []
    claimed: list[str] = []
    for number, value in protobuf_fields(container):
        if number == 1:
            name = protobuf_text(value)
        elif number == 2:
            plugin += [protobuf_text(device) for part, device in protobuf_fields(value) if part == 2]
        elif number == 5:
            for part, claim in protobuf_fields(value):
                if part == 4:
                    claimed += _devices_of_claim(claim)
    given = [PodDevice(namespace, pod, name, device) for device in plugin]
    return given + [PodDevice(namespace, pod, name, device, is_claim=True) for device in claimed]


def _devices_of_claim(claim: memoryview) -> list[str]:
    """Names of NVIDIA's devices. Old kubelets report only the CDI device: "k8s.gpu.nvidia.com/claim=UID-gpu-0"."""
    driver = device = ""
    cdi: list[str] = []
    for number, value in protobuf_fields(claim):
        if number == 1:
            cdi += [protobuf_text(name) for part, name in protobuf_fields(value) if part == 1]
        elif number == 2:
            driver = protobuf_text(value)
        elif number == 4:
            device = protobuf_text(value)
    if device:
        return [device] if driver == _DRA_DRIVER else []
    return [match[0] for name in cdi if _DRA_DRIVER in name and (match := _CDI_DEVICE.search(name))]


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT = 10


class ProtobufError(ValueError):
    """A protobuf message of the kubelet is invalid or truncated."""


def protobuf_fields(message: bytes | memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and value of each field of bytes of a kubelet's message, in their order; numbers are passed over.

    Raises:
        WireError: at the first invalid field.
    """
    view = memoryview(message)
    position = 0
    while position < len(view):
        tag, position = _varint(view, position)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise ProtobufError("a field without a number")
        if kind == _VARINT:
            _, position = _varint(view, position)
        elif kind in _SIZES:
            position += _SIZES[kind]
        elif kind == _BYTES:
            size, position = _varint(view, position)
            if position + size > len(view):
                raise ProtobufError(f"field {number} ends after the message")
            yield number, view[position : position + size]
            position += size
        else:
            raise ProtobufError(f"field {number} is of kind {kind}, which is none of protobuf 3")
        if position > len(view):
            raise ProtobufError(f"field {number} ends after the message")


def protobuf_text(value: memoryview) -> str:
    """Text of a field of a kubelet's message, with question marks for invalid UTF-8."""
    return bytes(value).decode("utf-8", errors="replace")


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(_MAX_VARINT):
        if position >= len(view):
            raise ProtobufError("a number that ends after the message")
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, position
    raise ProtobufError("a number of more than 10 bytes")
