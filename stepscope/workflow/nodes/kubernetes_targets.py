"""Agents behind a Kubernetes service: from the API server within a cluster, else from its name server.

The API is asked with the pod's service account, which needs the verb list on endpointslices. The name server knows the
addresses of a headless service alone, without the nodes' names.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stepscope.collectors.jobs.kubernetes.api_server import SERVICE_ACCOUNT, KubernetesApi, KubernetesApiError
from stepscope.core.errors import UnreachableError, UsageError

_PORT_NAME = "metrics"
"""Of the service in deploy/kubernetes/agent.yaml; else the first port counts."""
_SOURCE = re.compile(r"([a-z0-9-]{1,63})/([a-z0-9-]{1,63})(?::(\d{1,5}))?")

Found = list[tuple[str, tuple[tuple[str, str], ...]]]
"""Addresses with labels."""


def kubernetes_targets(
    text: str, *, seconds: float, environment: Mapping[str, str] = os.environ, account: Path = SERVICE_ACCOUNT
) -> Found:
    """Addresses and labels of the endpoints of NAMESPACE/SERVICE or NAMESPACE/SERVICE:PORT.

    Raises:
        UsageError: it is neither.
        UnreachableError: neither the API server nor the name server knows one.
    """
    match = _SOURCE.fullmatch(text)
    if match is None:
        raise UsageError(
            "is not NAMESPACE/SERVICE", where=f"k8s:{text}", what_next="write it as stepscope/stepscope-agent"
        )
    namespace, service, port = match.groups()
    api = KubernetesApi.of_pod(environment, account)
    refused = ""
    if api is not None:
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        try:
            slices = api.listed(path, {"labelSelector": f"kubernetes.io/service-name={service}"}, seconds=seconds)
        except KubernetesApiError as error:
            refused = str(error)
        else:
            found = [one for each in slices for one in endpoints_of(each, f"{service}.{namespace}.svc", port or "")]
            if found:
                return sorted(dict(found).items())
            refused = "the API server knows no endpoint of it"
    try:
        addresses = _look_up(f"{service}.{namespace}.svc")
    except OSError as error:
        why = f"{refused}; " if refused else ""
        what = f"no endpoint is known ({why}name server: {error.strerror or error})"
        next_step = "run it in the cluster, or in a pod whose service account may list endpointslices"
        raise UnreachableError(what, where=f"k8s:{text}", what_next=next_step) from None
    name = (("__meta_stepscope_server_name", f"{service}.{namespace}.svc"),)
    return [(_address(host, port or "9455"), name) for host in addresses]


def endpoints_of(document: Mapping[str, Any], server_name: str, port: str = "") -> Iterator[tuple[str, Any]]:
    """Addresses and labels of the endpoints in one EndpointSlice; of an endpoint its first address counts."""
    ports = document.get("ports") or []
    numbers = {str(one.get("name") or ""): one.get("port") for one in ports if isinstance(one, dict)}
    number = port or numbers.get(_PORT_NAME) or next(iter(numbers.values()), None)
    for endpoint in document.get("endpoints") or []:
        addresses = endpoint.get("addresses") if isinstance(endpoint, dict) else None
        if not addresses or number is None:
            continue
        pod = endpoint.get("targetRef") or {}
        labels = {
            "__meta_kubernetes_node": str(endpoint.get("nodeName") or ""),
            "__meta_kubernetes_pod": str(pod.get("name") or "") if isinstance(pod, dict) else "",
            "__meta_kubernetes_zone": str(endpoint.get("zone") or ""),
            "__meta_stepscope_server_name": server_name,
        }
        yield _address(str(addresses[0]), str(number)), tuple((name, value) for name, value in labels.items() if value)


def _address(host: str, port: str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _look_up(name: str) -> list[str]:
    return sorted({str(place[4][0]) for place in socket.getaddrinfo(name, None)})
