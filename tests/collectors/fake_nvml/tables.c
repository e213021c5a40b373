/* Field values, GPM samples, processes and events. */
#include "fake.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DOUBLE = 0, UINT = 1, COUNT = 3, SIGNED = 4 };

struct field_value {
    unsigned id, scope;
    long long timestamp, latency_us;
    unsigned type;
    nvmlReturn_t answer;
    union {
        double number;
        unsigned small;
        unsigned long long count;
        long long with_sign;
    } value;
};

/* "field.ID" or, with a scope, "field.ID.SCOPE": type letter and value, as "u 17", "c 17", "d 1.5", "s -3". */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, struct field_value *values) {
    GATE(device);
    for (int i = 0; i < count; i++) {
        struct field_value *one = &values[i];
        const char *text = one->scope ? device_text(device, "field.%u.%u", one->id, one->scope)
                                      : device_text(device, "field.%u", one->id);
        one->answer = text ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        if (!text) continue;
        switch (text[0]) {
            case 'u': one->type = UINT, one->value.small = (unsigned)strtoul(text + 2, NULL, 0); break;
            case 'c': one->type = COUNT, one->value.count = strtoull(text + 2, NULL, 0); break;
            case 'd': one->type = DOUBLE, one->value.number = strtod(text + 2, NULL); break;
            case 's': one->type = SIGNED, one->value.with_sign = strtoll(text + 2, NULL, 0); break;
            default: one->answer = (nvmlReturn_t)strtol(text, NULL, 0);
        }
    }
    return NVML_SUCCESS;
}

struct gpm_sample {
    int gpu, instance;
    struct timespec taken;
};
struct gpm_metric {
    unsigned id;
    nvmlReturn_t answer;
    double value;
    const char *names[3];
};
struct gpm_get {
    unsigned version, count;
    struct gpm_sample *first, *second;
    struct gpm_metric metrics[];
};
struct gpm_support {
    unsigned version, supported;
};

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, struct gpm_support *out) {
    GATE(device);
    const char *value = device_text(device, "gpm");
    out->supported = value ? (unsigned)atoi(value) : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(struct gpm_sample **out) {
    *out = calloc(1, sizeof **out);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleFree(struct gpm_sample *sample) {
    free(sample);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, struct gpm_sample *sample) {
    GATE(device);
    *sample = (struct gpm_sample){device->gpu, -1, {0, 0}};
    clock_gettime(CLOCK_MONOTONIC, &sample->taken);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned gpu_instance, struct gpm_sample *sample) {
    GATE(device);
    for (int mig = 0; mig < MAX_MIG; mig++) {
        const char *id = device_text(&fake_devices[device->gpu][mig + 1], "gpu_instance");
        if (!id || (unsigned)atoi(id) != gpu_instance) continue;
        *sample = (struct gpm_sample){device->gpu, mig, {0, 0}};
        clock_gettime(CLOCK_MONOTONIC, &sample->taken);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

/* "gpm.ID": a number, or "error N". Samples in the wrong order give negative rates, as subtracting counters does. */
nvmlReturn_t nvmlGpmMetricsGet(struct gpm_get *get) {
    GATE(NULL);
    if (get->version != 1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    struct gpm_sample *a = get->first, *b = get->second;
    double seconds = (double)(b->taken.tv_sec - a->taken.tv_sec) + 1e-9 * (double)(b->taken.tv_nsec - a->taken.tv_nsec);
    if (!a->taken.tv_sec || !b->taken.tv_sec || a->gpu != b->gpu) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < get->count; i++) {
        struct gpm_metric *one = &get->metrics[i];
        const char *text = device_text(&fake_devices[a->gpu][a->instance + 1], "gpm.%u", one->id);
        one->answer = NVML_SUCCESS;
        if (!text) one->answer = NVML_ERROR_INVALID_ARGUMENT;
        else if (!strncmp(text, "error ", 6)) one->answer = atoi(text + 6);
        else one->value = seconds == 0 ? NAN : seconds > 0 ? strtod(text, NULL) : -strtod(text, NULL);
    }
    return NVML_SUCCESS;
}

struct process {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
};

/* "KIND.count" and "KIND.J.pid", ".memory", ".gpu_instance". */
static nvmlReturn_t processes(nvmlDevice_t device, const char *kind, unsigned *count, struct process *out) {
    const char *text = device_text(device, "%s.count", kind);
    if (!text) return NVML_ERROR_NOT_SUPPORTED;
    unsigned room = *count;
    *count = (unsigned)atoi(text);
    if (room < *count) return too_small(out);
    for (unsigned i = 0; i < *count; i++) {
        const char *pid = device_text(device, "%s.%u.pid", kind, i);
        const char *memory = device_text(device, "%s.%u.memory", kind, i);
        const char *instance = device_text(device, "%s.%u.gpu_instance", kind, i);
        out[i].pid = pid ? (unsigned)atoi(pid) : 0;
        out[i].memory = memory ? strtoull(memory, NULL, 0) : ~0ULL;
        out[i].gpu_instance = out[i].compute_instance = instance ? (unsigned)atoi(instance) : ~0u;
    }
    return NVML_SUCCESS;
}

#define PROCESSES(function, kind)                                                                                      \
    nvmlReturn_t function(nvmlDevice_t device, unsigned *count, struct process *out) {                                 \
        GATE(device);                                                                                                  \
        return processes(device, kind, count, out);                                                                    \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "compute")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")

struct process_use {
    unsigned pid;
    unsigned long long time_us;
    unsigned sm, memory, encoder, decoder;
};

/* "use.count" and "use.J.pid", ".sm", ".time_us". None is told with success, which the Python binding takes ill. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, struct process_use *out, unsigned *count,
                                             unsigned long long since) {
    GATE(device);
    const char *text = device_text(device, "use.count");
    if (!text) return NVML_ERROR_NOT_SUPPORTED;
    unsigned number = 0, room = *count;
    for (int i = 0; i < atoi(text); i++) {
        const char *time = device_text(device, "use.%d.time_us", i);
        if (time && strtoull(time, NULL, 0) <= since) continue;
        if (out && number < room) {
            const char *pid = device_text(device, "use.%d.pid", i), *sm = device_text(device, "use.%d.sm", i);
            out[number] = (struct process_use){0};
            out[number].pid = pid ? (unsigned)atoi(pid) : 0;
            out[number].sm = sm ? (unsigned)atoi(sm) : 0;
            out[number].time_us = time ? strtoull(time, NULL, 0) : 1;
        }
        number++;
    }
    *count = number;
    return number > room ? too_small(out) : NVML_SUCCESS;
}

struct event_set {
    unsigned delivered[MAX_GPUS];
    char listens[MAX_GPUS];
};
struct event {
    nvmlDevice_t device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

static unsigned events_of(int gpu) {
    const char *text = device_text(&fake_devices[gpu][0], "xids");
    return text ? (unsigned)atoi(text) : 0;
}

nvmlReturn_t nvmlEventSetCreate(struct event_set **out) {
    GATE(NULL);
    *out = calloc(1, sizeof **out);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(struct event_set *set) {
    free(set);
    return NVML_SUCCESS;
}

/* Only what comes after it is told. */
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, struct event_set *set) {
    GATE(device);
    if (!(types & 8)) return NVML_ERROR_NOT_SUPPORTED;
    set->listens[device->gpu] = 1;
    set->delivered[device->gpu] = events_of(device->gpu);
    return NVML_SUCCESS;
}

/* "events_for_all": a set is told of GPUs that it was not made for. "xids": how many there were; "xid.J": the number of
 * the Jth, from 0 on; "xid_instance": the GPU instance that all are of. */
nvmlReturn_t nvmlEventSetWait_v2(struct event_set *set, struct event *out, unsigned timeout_ms) {
    GATE(NULL);
    (void)timeout_ms;
    for (int gpu = 0; gpu < MAX_GPUS; gpu++) {
        if (!(set->listens[gpu] || config_count("events_for_all", 0)) || set->delivered[gpu] >= events_of(gpu)) continue;
        const char *xid = device_text(&fake_devices[gpu][0], "xid.%u", set->delivered[gpu]++);
        const char *instance = device_text(&fake_devices[gpu][0], "xid_instance");
        unsigned of_instance = instance ? (unsigned)atoi(instance) : ~0u;
        *out = (struct event){&fake_devices[gpu][0], 8, xid ? strtoull(xid, NULL, 0) : 0, of_instance, of_instance};
        return NVML_SUCCESS;
    }
    return NVML_ERROR_TIMEOUT;
}
