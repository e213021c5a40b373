"""NVLink fabric of a GPU (NVSwitch systems): state and health, from the numbers in which NVML and DCGM report them."""

from __future__ import annotations

_STATES = ("not_supported", "not_started", "in_progress", "completed", "failed")
"""nvmlGpuFabricState_t, and dcgmFabricManagerStatus_t, which has the last as well."""
_COMPLETED = 3
_ASPECTS = (("bandwidth", 0), ("route_recovery", 2), ("route", 4), ("access_timeout_recovery", 6))
"""Two bits each of the health mask, from this one on: 1: it is unhealthy, 2: it is not, 0: not supported."""
_CONFIGURATION_BIT = 8
_CONFIGURATION_RIGHT = 1
_MISCONFIGURATIONS = {
    2: "wrong_system_guid",
    3: "wrong_chassis_serial",
    4: "no_partition",
    5: "too_few_links",
    6: "incompatible_firmware",
    7: "invalid_location",
    8: "invalid_gpu_state",
}
"""Four bits of the health mask; 1: the configuration is right, 0: not supported."""
_HEALTHY, _LIMITED = 1, 3
"""Values of the summary; 2: unhealthy, 0: not supported."""


def fabric_states(number: int, *, has_failed: bool = False) -> dict[str, float]:
    """1 for the state that a GPU's registration with the fabric is in, 0 for the others.

    Args:
        has_failed: the registration ended with an error.
    """
    name = _STATES[number] if 0 <= number < len(_STATES) else f"state_{number}"
    if number == _COMPLETED and has_failed:
        name = "failed"
    return {state: float(state == name) for state in dict.fromkeys((*_STATES[1:], name))}


def fabric_health(mask: int) -> dict[str, float]:
    """Aspects of a fabric's health by its mask; 1: healthy. What is wrong with the configuration is one of its own."""
    bits = {aspect: mask >> first_bit & 3 for aspect, first_bit in _ASPECTS}
    health = {aspect: float(bit != 1) for aspect, bit in bits.items() if bit}
    configuration = mask >> _CONFIGURATION_BIT & 0xF
    if configuration:
        health["configuration"] = float(configuration == _CONFIGURATION_RIGHT)
        if configuration != _CONFIGURATION_RIGHT:
            health[_MISCONFIGURATIONS.get(configuration, f"configuration_{configuration}")] = 0.0
    return health


def fabric_summary(number: int) -> dict[str, float]:
    """The same of the summary, which tells apart what is unhealthy and what has a limited capacity."""
    if not number:
        return {}
    return {"capacity": 0.0} if number == _LIMITED else {"summary": float(number == _HEALTHY)}
