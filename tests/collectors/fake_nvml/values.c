/* Single values of a GPU. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

static nvmlReturn_t get_uint(const char *value, unsigned *out) {
    if (!value) return NVML_ERROR_NOT_SUPPORTED;
    *out = (unsigned)strtoul(value, NULL, 0);
    return NVML_SUCCESS;
}

static nvmlReturn_t get_count(const char *value, unsigned long long *out) {
    if (!value) return NVML_ERROR_NOT_SUPPORTED;
    *out = strtoull(value, NULL, 0);
    return NVML_SUCCESS;
}

#define UINT(function, key)                                                                                            \
    nvmlReturn_t function(nvmlDevice_t device, unsigned *out) {                                                        \
        GATE(device);                                                                                                  \
        return get_uint(device_text(device, key), out);                                                                \
    }
UINT(nvmlDeviceGetMinorNumber, "minor")
UINT(nvmlDeviceGetArchitecture, "architecture")
UINT(nvmlDeviceGetPowerUsage, "power_mw")
UINT(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
UINT(nvmlDeviceGetPowerManagementDefaultLimit, "power_limit_default_mw")
UINT(nvmlDeviceGetPerformanceState, "pstate")
UINT(nvmlDeviceGetFanSpeed, "fan")
UINT(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
UINT(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
UINT(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max")
UINT(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
UINT(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
UINT(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pending")

#define COUNT(function, key)                                                                                           \
    nvmlReturn_t function(nvmlDevice_t device, unsigned long long *out) {                                              \
        GATE(device);                                                                                                  \
        return get_count(device_text(device, key), out);                                                               \
    }
COUNT(nvmlDeviceGetTotalEnergyConsumption, "energy_mj")
COUNT(nvmlDeviceGetCurrentClocksEventReasons, "throttle_mask")
COUNT(nvmlDeviceGetCurrentClocksThrottleReasons, "throttle_mask_old")

#define UINT_BY(function, key)                                                                                         \
    nvmlReturn_t function(nvmlDevice_t device, unsigned which, unsigned *out) {                                        \
        GATE(device);                                                                                                  \
        return get_uint(device_text(device, key ".%u", which), out);                                                   \
    }
UINT_BY(nvmlDeviceGetClockInfo, "clock")
UINT_BY(nvmlDeviceGetMaxClockInfo, "clock_max")
UINT_BY(nvmlDeviceGetTemperature, "temperature")
UINT_BY(nvmlDeviceGetTemperatureThreshold, "threshold")
UINT_BY(nvmlDeviceGetNvLinkState, "nvlink")
UINT_BY(nvmlDeviceGetNvLinkRemoteDeviceType, "nvlink_end_type")

#define UINT_AND_PERIOD(function, key)                                                                                 \
    nvmlReturn_t function(nvmlDevice_t device, unsigned *out, unsigned *period_us) {                                   \
        GATE(device);                                                                                                  \
        *period_us = 100000;                                                                                           \
        return get_uint(device_text(device, key), out);                                                                \
    }
UINT_AND_PERIOD(nvmlDeviceGetEncoderUtilization, "encoder")
UINT_AND_PERIOD(nvmlDeviceGetDecoderUtilization, "decoder")
UINT_AND_PERIOD(nvmlDeviceGetEccMode, "ecc_mode")

struct utilization {
    unsigned gpu, memory;
};
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct utilization *out) {
    GATE(device);
    nvmlReturn_t answer = get_uint(device_text(device, "utilization"), &out->gpu);
    return answer ? answer : get_uint(device_text(device, "utilization_memory"), &out->memory);
}

struct memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory *out) {
    GATE(device);
    if (out->version != (sizeof *out | 2u << 24)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t answer = get_count(device_text(device, "memory_total"), &out->total);
    if (!answer) answer = get_count(device_text(device, "memory_reserved"), &out->reserved);
    if (!answer) answer = get_count(device_text(device, "memory_used"), &out->used);
    out->free = out->total - out->reserved - out->used;
    return answer;
}

struct bar1 {
    unsigned long long total, free, used;
};
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, struct bar1 *out) {
    GATE(device);
    nvmlReturn_t answer = get_count(device_text(device, "bar1_total"), &out->total);
    if (!answer) answer = get_count(device_text(device, "bar1_used"), &out->used);
    out->free = out->total - out->used;
    return answer;
}

struct margin {
    unsigned version;
    int margin;
};
nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, struct margin *out) {
    GATE(device);
    const char *value = device_text(device, "margin");
    if (!value) return NVML_ERROR_NOT_SUPPORTED;
    out->margin = atoi(value);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned period, unsigned long long *out) {
    GATE(device);
    return get_count(device_text(device, "ecc.%u.%u", type, period), out);
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
                                       unsigned *pending, unsigned *failed) {
    GATE(device);
    nvmlReturn_t answer = get_uint(device_text(device, "remap_corrected"), corrected);
    if (!answer) answer = get_uint(device_text(device, "remap_uncorrected"), uncorrected);
    if (!answer) answer = get_uint(device_text(device, "remap_pending"), pending);
    if (!answer) answer = get_uint(device_text(device, "remap_failed"), failed);
    return answer;
}

nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, unsigned out[5]) {
    GATE(device);
    for (unsigned i = 0; i < 5; i++)
        if (get_uint(device_text(device, "remap_banks.%u", i), &out[i])) return NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause, unsigned *count, unsigned long long *pages) {
    GATE(device);
    unsigned retired;
    nvmlReturn_t answer = get_uint(device_text(device, "retired.%u", cause), &retired);
    if (answer) return answer;
    if (*count < retired) {
        *count = retired;
        return too_small(pages);
    }
    *count = retired;
    if (pages) memset(pages, 0, retired * sizeof *pages);
    return NVML_SUCCESS;
}

/* Without "fabric_summary" the driver knows version 2 only. */
struct fabric {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state; /* padded in both versions */
    unsigned health;
    unsigned char summary;
};
enum { FABRIC_V2_BYTES = offsetof(struct fabric, summary) };
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, struct fabric *out) {
    GATE(device);
    const char *summary = device_text(device, "fabric_summary");
    if (summary && out->version == (sizeof *out | 3u << 24))
        out->summary = (unsigned char)atoi(summary);
    else if (out->version != (FABRIC_V2_BYTES | 2u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    unsigned state;
    nvmlReturn_t answer = get_uint(device_text(device, "fabric_state"), &state);
    if (!answer) answer = get_uint(device_text(device, "fabric_health"), &out->health);
    if (!answer) answer = get_uint(device_text(device, "fabric_status"), &out->status);
    if (!answer) out->state = (unsigned char)state;
    return answer;
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, unsigned counter,
                                             unsigned long long *out) {
    GATE(device);
    return get_count(device_text(device, "nvlink_errors.%u.%u", link, counter), out);
}

/* "sram_exceeded", and, 0 without, the others. */
struct sram {
    unsigned version;
    unsigned long long lifetime_parity, lifetime_secded, lifetime_corrected, parity, secded, corrected, buckets[5];
    unsigned exceeded;
};
nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, struct sram *out) {
    GATE(device);
    if (out->version != (sizeof *out | 1u << 24)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    get_count(device_text(device, "sram_lifetime_parity"), &out->lifetime_parity);
    get_count(device_text(device, "sram_lifetime_secded"), &out->lifetime_secded);
    get_count(device_text(device, "sram_parity"), &out->parity);
    get_count(device_text(device, "sram_secded"), &out->secded);
    get_count(device_text(device, "sram_corrected"), &out->corrected);
    return get_uint(device_text(device, "sram_exceeded"), &out->exceeded);
}
