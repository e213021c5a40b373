/* The library itself, which GPUs there are, and what they are called. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct device fake_devices[MAX_GPUS][MAX_MIG + 1];

static nvmlReturn_t copy_text(const char *value, char *out, unsigned length) {
    if (!value) return NVML_ERROR_NOT_SUPPORTED;
    if (strlen(value) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, value);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (getenv("FAKE_NVML_CHATTERS")) {
        puts("NVML: hello");
        fflush(stdout);
    }
    fake_initialized(1);
    for (int gpu = 0; gpu < MAX_GPUS; gpu++)
        for (int mig = 0; mig <= MAX_MIG; mig++) fake_devices[gpu][mig] = (struct device){gpu, mig - 1};
    nvmlReturn_t answer = fake_gate(__func__, NULL);
    if (answer) fake_initialized(0);
    return answer;
}

nvmlReturn_t nvmlShutdown(void) {
    GATE(NULL);
    fake_initialized(0);
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
        case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
        case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
        case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "RM has detected an NVML/RM version mismatch.";
        case 9: return "Driver Not Loaded";
        case 4: return "Insufficient Permissions";
        default: return "Unknown Error";
    }
}

#define SYSTEM_TEXT(function, key)                                                                                     \
    nvmlReturn_t function(char *out, unsigned length) {                                                                \
        GATE(NULL);                                                                                                    \
        return copy_text(config_text(key), out, length);                                                               \
    }
SYSTEM_TEXT(nvmlSystemGetDriverVersion, "driver")
SYSTEM_TEXT(nvmlSystemGetNVMLVersion, "nvml")

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    GATE(NULL);
    *version = (int)config_count("cuda", 13000);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    GATE(NULL);
    *count = (unsigned)config_count("gpus", 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    GATE(NULL);
    if (index >= config_count("gpus", 0)) return NVML_ERROR_INVALID_ARGUMENT;
    *device = &fake_devices[index][0];
    return fake_gate(__func__, *device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    GATE(NULL);
    for (unsigned index = 0; index < config_count("gpus", 0); index++) {
        const char *own = device_text(&fake_devices[index][0], "pci_bus_id");
        if (own && !strcmp(own, bus_id)) {
            *device = &fake_devices[index][0];
            return fake_gate(__func__, *device);
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

#define DEVICE_TEXT(function, key)                                                                                     \
    nvmlReturn_t function(nvmlDevice_t device, char *out, unsigned length) {                                           \
        GATE(device);                                                                                                  \
        return copy_text(device_text(device, key), out, length);                                                       \
    }
DEVICE_TEXT(nvmlDeviceGetUUID, "uuid")
DEVICE_TEXT(nvmlDeviceGetName, "name")
DEVICE_TEXT(nvmlDeviceGetSerial, "serial")
DEVICE_TEXT(nvmlDeviceGetVbiosVersion, "vbios")

struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct pci_info *info) {
    GATE(device);
    memset(info, 0, sizeof *info);
    return copy_text(device_text(device, "pci_bus_id"), info->bus_id, sizeof info->bus_id);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, struct pci_info *info) {
    GATE(device);
    memset(info, 0, sizeof *info);
    return copy_text(device_text(device, "nvlink_end.%u", link), info->bus_id, sizeof info->bus_id);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    GATE(device);
    const char *mode = device_text(device, "mig_mode");
    if (!mode) return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = (unsigned)atoi(mode);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count) {
    GATE(device);
    *count = device_text(device, "mig_mode") ? 7 : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *instance) {
    GATE(device);
    if (index >= MAX_MIG) return NVML_ERROR_INVALID_ARGUMENT;
    *instance = &fake_devices[device->gpu][index + 1];
    return device_text(*instance, "uuid") ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    GATE(device);
    *index = (unsigned)device->gpu;
    return NVML_SUCCESS;
}

static nvmlReturn_t id_of(nvmlDevice_t device, const char *key, unsigned *out) {
    const char *value = device_text(device, "%s", key);
    if (!value) return NVML_ERROR_NOT_SUPPORTED;
    *out = (unsigned)strtoul(value, NULL, 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id) {
    GATE(device);
    return id_of(device, "gpu_instance", id);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id) {
    GATE(device);
    return id_of(device, "compute_instance", id);
}
