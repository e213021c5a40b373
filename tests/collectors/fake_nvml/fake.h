/* A libnvidia-ml.so.1 for tests: what each call answers stands in a file, which may change while the library is used.
 *
 * The file (its path: FAKE_NVML_CONFIG) has one "key value" a line; profile.py writes it. A value that is not there is
 * one that the GPU does not support. Keys:
 *   driver, cuda, nvml, gpus, generation     of the system; another generation than at load: the driver was reloaded
 *   error N                                  every call returns N
 *   counts_succeed 1                         the number of a list is given without an error
 *   hang F                                   call F ("any": each) never returns
 *   gpu.I.lost 1                             the GPU fell off the bus
 *   gpu.I.hang F, gpu.I.crash F              call F ("any": each) on this GPU never returns, or ends the process
 *   gpu.I.slow_ms N                          each call on this GPU takes N ms
 *   gpu.I.error.F N                          call F on this GPU returns N
 *   gpu.I.NAME, gpu.I.mig.J.NAME             values of the GPU and of its MIG instances
 */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H

#include <stddef.h>

typedef int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
};

enum { MAX_GPUS = 64, MAX_MIG = 16 };

/* A GPU (mig < 0) or one of its MIG instances. */
struct device {
    int gpu;
    int mig;
};
typedef struct device *nvmlDevice_t;

extern struct device fake_devices[MAX_GPUS][MAX_MIG + 1];

/* Values of the file; NULL or the default where it has none. */
const char *config_text(const char *key);
double config_number(const char *key, double otherwise);
unsigned long long config_count(const char *key, unsigned long long otherwise);

/* The same of a device: key "name" means "gpu.I.name" or "gpu.I.mig.J.name". */
const char *device_text(nvmlDevice_t device, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What every call does first: read the file again if it changed, then hang, crash, wait or fail as it says. */
nvmlReturn_t fake_gate(const char *function, nvmlDevice_t device);

/* Of a list that has not enough room: with "counts_succeed 1" no error where the caller gave none, as NVIDIA's mocknvml. */
nvmlReturn_t too_small(const void *room);
void fake_initialized(int is_initialized);
int fake_read_config(void);

#define GATE(device)                                                                                                   \
    do {                                                                                                               \
        nvmlReturn_t answer = fake_gate(__func__, (device));                                                           \
        if (answer != NVML_SUCCESS) return answer;                                                                     \
    } while (0)

#endif
