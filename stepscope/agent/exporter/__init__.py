"""How do readings become a page that Prometheus understands?"""

from __future__ import annotations

from stepscope.agent.exporter.dcgm_names import DcgmNames
from stepscope.agent.exporter.page import MetricsPage

__all__ = ["DcgmNames", "MetricsPage"]
