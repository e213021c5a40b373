"""Which devices did the kubelet give to which pod? Messages of the pod-resources API, version 1.

ListPodResourcesResponse { pod_resources = 1 }, PodResources { name = 1, namespace = 2, containers = 3 },
ContainerResources { name = 1, devices = 2, dynamic_resources = 5 }, ContainerDevices { resource_name = 1,
device_ids = 2 }, DynamicResource { claim_resources = 4 }, ClaimResource { cdi_devices = 1, driver_name = 2,
device_name = 4 }, CDIDevice { name = 1 }.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepscope.collectors.jobs.kubernetes.protobuf import fields, text

LIST = "/v1.PodResourcesLister/List"
_DRA_DRIVER = "gpu.nvidia.com"
_CDI_DEVICE = re.compile(r"gpu-\d+(?:-mig-.+)?$")


@dataclass(frozen=True, slots=True)
class GivenDevice:
    """A device of a container.

    Attributes:
        namespace, pod, container: whose.
        name: as the device plugin or the DRA driver calls it: "GPU-...", "GPU-...::3", "gpu-0".
        is_claim: by dynamic resource allocation.
    """

    namespace: str
    pod: str
    container: str
    name: str
    is_claim: bool = False


def given_devices(response: bytes) -> list[GivenDevice]:
    """All devices of all pods, GPUs or not.

    Raises:
        WireError: it is no such message.
    """
    found: list[GivenDevice] = []
    for number, pod in fields(response):
        if number != 1:
            continue
        name = namespace = ""
        containers: list[memoryview] = []
        for part, value in fields(pod):
            if part == 1:
                name = text(value)
            elif part == 2:
                namespace = text(value)
            elif part == 3:
                containers.append(value)
        for container in containers:
            found += _of_container(namespace, name, container)
    return found


def _of_container(namespace: str, pod: str, container: memoryview) -> list[GivenDevice]:
    name = ""
    plugin: list[str] = []
    claimed: list[str] = []
    for number, value in fields(container):
        if number == 1:
            name = text(value)
        elif number == 2:
            plugin += [text(device) for part, device in fields(value) if part == 2]
        elif number == 5:
            for part, claim in fields(value):
                if part == 4:
                    claimed += _of_claim(claim)
    given = [GivenDevice(namespace, pod, name, device) for device in plugin]
    return given + [GivenDevice(namespace, pod, name, device, is_claim=True) for device in claimed]


def _of_claim(claim: memoryview) -> list[str]:
    """Names of NVIDIA's devices. Old kubelets tell the CDI device alone: "k8s.gpu.nvidia.com/claim=UID-gpu-0"."""
    driver = device = ""
    cdi: list[str] = []
    for number, value in fields(claim):
        if number == 1:
            cdi += [text(name) for part, name in fields(value) if part == 1]
        elif number == 2:
            driver = text(value)
        elif number == 4:
            device = text(value)
    if device:
        return [device] if driver == _DRA_DRIVER else []
    return [match[0] for name in cdi if _DRA_DRIVER in name and (match := _CDI_DEVICE.search(name))]
