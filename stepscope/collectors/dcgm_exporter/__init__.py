"""GPU metrics from a dcgm-exporter's page, whichever version wrote it."""

from stepscope.collectors.dcgm_exporter.collector import DcgmExporterCollector
from stepscope.collectors.dcgm_exporter.page import Endpoint, endpoint_of

__all__ = ["DcgmExporterCollector", "Endpoint", "endpoint_of"]
