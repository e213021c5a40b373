"""Entities and workloads of a page: which GPU, MIG instance, NVLink, switch or CPU a sample is of, and who uses it.

Read from the labels of all versions of dcgm-exporter. Label names changed (`Hostname` and `hostname`, `UUID`, `uuid`
and `gpu_uuid`, `pod` and `pod_name`), so they are compared without case and underscores. Prometheus puts `exported_`
before the exporter's labels where its own have the same name. `device` is "nvidia" and DCGM's id, not a minor number;
`Hostname` is "localhost" where the host engine is remote (NVIDIA/dcgm-exporter#572): neither is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from stepscope.collectors.dcgm_exporter.page import parse_label_text
from stepscope.core.hardware.devices import OLD_MIG_UUID, cuda_version_text
from stepscope.core.metrics.readings import Labels, labels_of
from stepscope.core.text.names import MAX_ID_LENGTH, label_text

_EXPORTED = frozenset({"exportedpod", "exportednamespace", "exportedcontainer"})


class DcgmEntityKind(Enum):
    """Kind of thing that a sample of a dcgm-exporter is of."""

    GPU = auto()  # whole, or a MIG instance
    GPU_LINK = auto()
    SWITCH = auto()
    SWITCH_LINK = auto()
    CPU = auto()
    NONE = auto()


@dataclass(frozen=True, slots=True)
class DcgmEntity:
    """The thing that a sample of a dcgm-exporter is of. Texts are empty where they do not apply.

    Attributes:
        gpu: DCGM's id, in the order of NVML's index but neither CUDA's nor the minor number.
    """

    kind: DcgmEntityKind
    gpu: str = ""
    uuid: str = ""
    gpu_instance: str = ""
    mig_profile: str = ""
    mig_uuid: str = ""
    link: str = ""
    switch: str = ""
    cpu: str = ""
    core: str = ""

    @property
    def labels(self) -> Labels:
        values = {
            "gpu": self.gpu,
            "uuid": self.mig_uuid or self.uuid,
            "gpu_instance": self.gpu_instance,
            "mig_profile": self.mig_profile,
            "link": self.link,
            "switch": self.switch,
            "cpu": self.cpu,
            "core": self.core,
        }
        return labels_of(**{name: value for name, value in values.items() if value})

    @property
    def is_instance(self) -> bool:
        return bool(self.gpu_instance or self.mig_uuid)

    @property
    def whole(self) -> DcgmEntity:
        """The whole GPU that it is, or is a part of."""
        return DcgmEntity(DcgmEntityKind.GPU, gpu=self.gpu, uuid=self.uuid)


@dataclass(frozen=True, slots=True)
class Workload:
    """User of a GPU, as far as a dcgm-exporter's page has it. Texts are empty where it does not.

    Attributes:
        job: of Slurm or another, from the files of hpc_job.
        vgpu: which of the shares of a time-sliced GPU.
    """

    namespace: str = ""
    pod: str = ""
    container: str = ""
    pod_uid: str = ""
    job: str = ""
    vgpu: str = ""

    @property
    def labels(self) -> Labels:
        names = ("namespace", "pod", "container", "pod_uid", "job", "vgpu")
        return tuple(sorted((name, getattr(self, name)) for name in names if getattr(self, name)))


NO_WORKLOAD = Workload()


def normalized_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels of a dcgm-exporter with names in lower case and without underscores, and without DCGM's words for none.

    The exporter writes values as users wrote them: they are shortened, and unprintable characters removed.
    """
    plain: dict[str, str] = {}
    for name, value in labels.items():
        plain.setdefault(name.lower().replace("_", ""), label_text(parse_label_text(value), MAX_ID_LENGTH))
    return plain


class LabelReader:
    """Reader of the labels of one dcgm-exporter page, all of which went through `normalized_labels`."""

    def __init__(self, all_labels: Iterable[Mapping[str, str]]) -> None:
        """
        Args:
            all_labels: of all samples of the page. Where Prometheus renamed any, the plain names are those of the
                exporter's own pod on every line, also on that of an idle GPU, which has no others.
        """
        self._is_exported = False
        self._uuid_by_gpu: dict[str, str] = {}
        self._gpu_by_uuid: dict[str, str] = {}
        for known in all_labels:
            self._is_exported |= not _EXPORTED.isdisjoint(known)
            entity = self._entity(known)
            if entity.gpu and entity.uuid:
                self._uuid_by_gpu.setdefault(entity.gpu, entity.uuid)
                self._gpu_by_uuid.setdefault(entity.uuid, entity.gpu)

    def entity(self, labels: Mapping[str, str]) -> DcgmEntity:
        """The entity of a sample; lines without the UUID or the id get it from lines that have it."""
        entity = self._entity(labels)
        if entity.kind not in (DcgmEntityKind.GPU, DcgmEntityKind.GPU_LINK):
            return entity
        return replace(
            entity,
            uuid=entity.uuid or self._uuid_by_gpu.get(entity.gpu, ""),
            gpu=entity.gpu or self._gpu_by_uuid.get(entity.uuid, ""),
        )

    def workload(self, labels: Mapping[str, str]) -> Workload:
        def first(*names: str) -> str:
            if self._is_exported:
                names = tuple(f"exported{name}" for name in names)
            return next((labels[name] for name in names if labels.get(name)), "")

        return Workload(
            namespace=label_text(first("namespace", "podnamespace")),
            pod=first("pod", "podname"),  # of 253 letters at most
            container=label_text(first("container", "containername")),
            pod_uid=label_text(labels.get("poduid", "")),
            job=label_text(labels.get("hpcjob", "")),
            vgpu=label_text(labels.get("vgpu", "")),
        )

    @staticmethod
    def _entity(known: Mapping[str, str]) -> DcgmEntity:
        switch, link = known.get("nvswitch", ""), known.get("nvlink", "")
        gpu, uuid = known.get("gpu", ""), known.get("uuid", "") or known.get("gpuuuid", "")
        if link and (gpu or uuid):
            return DcgmEntity(DcgmEntityKind.GPU_LINK, gpu=gpu, uuid=uuid, link=link)
        if switch:
            return DcgmEntity(DcgmEntityKind.SWITCH_LINK if link else DcgmEntityKind.SWITCH, switch=switch, link=link)
        if not gpu and not uuid:
            if "cpu" in known or "cpucore" in known:
                return DcgmEntity(DcgmEntityKind.CPU, cpu=known.get("cpu", ""), core=known.get("cpucore", ""))
            return DcgmEntity(DcgmEntityKind.NONE)
        instance, mig_uuid = known.get("gpuiid", ""), known.get("dramigdeviceuuid", "")
        if uuid.startswith("MIG-"):
            mig_uuid, uuid = uuid, ""
            parts = OLD_MIG_UUID.fullmatch(mig_uuid)
            if parts:
                uuid, instance = parts[1], instance or parts[2]
        profile = known.get("gpuiprofile", "") or known.get("dramigprofile", "") if instance or mig_uuid else ""
        return DcgmEntity(
            DcgmEntityKind.GPU, gpu=gpu, uuid=uuid, gpu_instance=instance, mig_profile=profile, mig_uuid=mig_uuid
        )


FACT_LABELS = {
    "modelname": "name",
    "model": "name",
    "pcibusid": "pci_bus_id",
    "dcgmfidriverversion": "driver",
    "dcgmficudadriverversion": "cuda",
    "dcgmfidevserial": "serial",
    "dcgmfidevvbiosversion": "vbios",
}
"""Labels with facts about a GPU, and their names in the info metric."""


def gpu_facts_of_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Facts about the GPU of a dcgm-exporter's line, by label of the info metric."""
    facts = {}
    for name, value in labels.items():
        fact = FACT_LABELS.get(name)
        if fact and value:
            facts[fact] = value
    version = facts.get("cuda", "")
    if version.isascii() and version.isdigit() and len(version) < 16:  # 13000, as the driver has it
        facts["cuda"] = cuda_version_text(int(version))
    return facts
