"""What do GPUs and jobs spend their time on, by their counters alone?"""

from stepscope.agent.fleet.source import FleetSource

__all__ = ["FleetSource"]
