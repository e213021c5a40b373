"""GPU metrics from a dcgm-exporter's page, whichever version wrote it."""

from stepscope.collectors.dcgm_exporter.collector import DcgmExporterCollector
from stepscope.collectors.dcgm_exporter.page import Endpoint, dcgm_endpoint_of

__all__ = ["DcgmExporterCollector", "Endpoint", "dcgm_endpoint_of"]
