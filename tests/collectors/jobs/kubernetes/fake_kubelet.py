"""A kubelet's pod-resources API: a real gRPC server on a Unix socket, with Google's own encoder of messages.

A process of its own, as gRPC's threads and forks of other tests do not go together. It answers what a file says at each
call: {"pods": [...]}, {"status": 7, "message": "..."} or {"seconds": 60}.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_FIELDS: dict[str, dict[str, tuple[int, str, bool]]] = {
    "TopologyInfo": {"nodes": (1, "NUMANode", True)},
    "NUMANode": {"ID": (1, "int64", False)},
    "ContainerDevices": {
        "resource_name": (1, "string", False),
        "device_ids": (2, "string", True),
        "topology": (3, "TopologyInfo", False),
    },
    "ContainerMemory": {"memory_type": (1, "string", False), "size": (2, "uint64", False)},
    "CDIDevice": {"name": (1, "string", False)},
    "ClaimResource": {
        "cdi_devices": (1, "CDIDevice", True),
        "driver_name": (2, "string", False),
        "pool_name": (3, "string", False),
        "device_name": (4, "string", False),
    },
    "DynamicResource": {
        "claim_name": (2, "string", False),
        "claim_namespace": (3, "string", False),
        "claim_resources": (4, "ClaimResource", True),
    },
    "ContainerResources": {
        "name": (1, "string", False),
        "devices": (2, "ContainerDevices", True),
        "cpu_ids": (3, "int64", True),
        "memory": (4, "ContainerMemory", True),
        "dynamic_resources": (5, "DynamicResource", True),
    },
    "PodResources": {
        "name": (1, "string", False),
        "namespace": (2, "string", False),
        "containers": (3, "ContainerResources", True),
        "cpu_ids": (4, "int64", True),
    },
    "ListPodResourcesResponse": {"pod_resources": (1, "PodResources", True)},
}
"""Messages of version 1: number, type, and whether it is repeated."""


class Kubelet:
    """The server's process; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "kubelet.sock"
        self._answer = folder / "answer.json"
        self.answers(pods=[])
        self._process: subprocess.Popen[str] | None = None

    def answers(self, **answer: Any) -> None:
        """What it says from now on."""
        partial = self._answer.with_suffix(".partial")
        partial.write_text(json.dumps(answer))
        partial.replace(self._answer)

    def __enter__(self) -> Kubelet:
        line = [sys.executable, __file__, str(self.socket), str(self._answer)]
        self._process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.communicate()  # the end of its input ends it


def container(name: str, *devices: str, resource: str = "nvidia.com/gpu", claims: Any = ()) -> dict[str, Any]:
    """A container with devices of a plugin, and claims of (driver, device, CDI name)."""
    return {
        "name": name,
        "devices": [
            {"resource_name": resource, "device_ids": [one], "topology": {"nodes": [{"ID": 1}]}} for one in devices
        ],
        "cpu_ids": [1, 2, 300],
        "memory": [{"memory_type": "hugepages-2Mi", "size": 1 << 40}],
        "dynamic_resources": [
            {
                "claim_name": "gpus",
                "claim_namespace": "ml",
                "claim_resources": [
                    {
                        "driver_name": driver,
                        "pool_name": "node-1",
                        "device_name": device,
                        "cdi_devices": [{"name": cdi}],
                    }
                    for driver, device, cdi in claims
                ],
            }
        ],
    }


def pod(namespace: str, name: str, *containers: dict[str, Any]) -> dict[str, Any]:
    """A pod."""
    return {"namespace": namespace, "name": name, "containers": list(containers)}


def _response_type() -> Any:
    """Google's class of the response, made of the numbers above."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    kinds = {"string": field.TYPE_STRING, "int64": field.TYPE_INT64, "uint64": field.TYPE_UINT64}
    file = descriptor_pb2.FileDescriptorProto(name="pod_resources.proto", package="v1", syntax="proto3")
    for message, its_fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        for name, (number, kind, is_repeated) in its_fields.items():
            described.field.add(
                name=name,
                number=number,
                type=kinds.get(kind, field.TYPE_MESSAGE),
                type_name=None if kind in kinds else f".v1.{kind}",
                label=field.LABEL_REPEATED if is_repeated else field.LABEL_OPTIONAL,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("v1.ListPodResourcesResponse"))


def _serve(socket: str, answer: Path) -> None:
    import time
    from concurrent.futures import ThreadPoolExecutor

    import grpc
    from google.protobuf import json_format

    response_type = _response_type()

    def listed(_: bytes, context: Any) -> bytes:
        told = json.loads(answer.read_text())
        time.sleep(told.get("seconds", 0))
        if "status" in told:
            codes = {code.value[0]: code for code in grpc.StatusCode}
            context.abort(codes[told["status"]], told["message"])
        response = json_format.ParseDict({"pod_resources": told["pods"]}, response_type())
        return bytes(response.SerializeToString())

    server = grpc.server(ThreadPoolExecutor(4))
    handlers = {"List": grpc.unary_unary_rpc_method_handler(listed)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers)])
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    print("ready", flush=True)  # noqa: T201 - to its parent
    sys.stdin.read()
    server.stop(None)


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]))
