/* What does the file say, and what does it make a call do? */
#define _GNU_SOURCE
#include "fake.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { NUM_SLOTS = 1 << 15 };

static struct {
    const char *key;
    const char *value;
} slots[NUM_SLOTS];
static char *text;
static struct stat seen;
static unsigned long long loaded_generation;
static int initialized, loaded;

static unsigned slot_of(const char *key) {
    unsigned hash = 2166136261u;
    for (const char *c = key; *c; c++) hash = (hash ^ (unsigned char)*c) * 16777619u;
    for (unsigned slot = hash % NUM_SLOTS;; slot = (slot + 1) % NUM_SLOTS)
        if (!slots[slot].key || !strcmp(slots[slot].key, key)) return slot;
}

const char *config_text(const char *key) { return slots[slot_of(key)].value; }

double config_number(const char *key, double otherwise) {
    const char *value = config_text(key);
    return value ? strtod(value, NULL) : otherwise;
}

unsigned long long config_count(const char *key, unsigned long long otherwise) {
    const char *value = config_text(key);
    return value ? strtoull(value, NULL, 0) : otherwise;
}

static void fill(void) {
    memset(slots, 0, sizeof slots);
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n"))) {
        char *value = strchr(line, ' ');
        if (!value) continue;
        *value = 0;
        unsigned slot = slot_of(line);
        slots[slot].key = line;
        slots[slot].value = value + 1;
    }
}

/* Read the file if it is another one than last time. 0: there is none. */
int fake_read_config(void) {
    const char *path = getenv("FAKE_NVML_CONFIG");
    struct stat now;
    if (!path || stat(path, &now)) return 0;
    if (text && now.st_ino == seen.st_ino && now.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec && now.st_size == seen.st_size)
        return 1;
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    free(text);
    text = calloc(1, (size_t)now.st_size + 1);
    size_t length = fread(text, 1, (size_t)now.st_size, file);
    text[length] = 0;
    fclose(file);
    seen = now;
    fill();
    if (!loaded++) loaded_generation = config_count("generation", 1);
    return 1;
}

void fake_initialized(int is_initialized) { initialized = is_initialized; }

const char *device_text(nvmlDevice_t device, const char *format, ...) {
    char name[64], key[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    if (device->mig < 0)
        snprintf(key, sizeof key, "gpu.%d.%s", device->gpu, name);
    else
        snprintf(key, sizeof key, "gpu.%d.mig.%d.%s", device->gpu, device->mig, name);
    return config_text(key);
}

nvmlReturn_t too_small(const void *room) {
    return !room && config_count("counts_succeed", 0) ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

/* Never return while the file says so: a hanging driver may come to itself. */
static void rest(void) {
    nanosleep(&(struct timespec){0, 20 * 1000000}, NULL);
    fake_read_config();
}

static int concerns(const char *value, const char *function) {
    return value && (!strcmp(value, "any") || !strcmp(value, function));
}

nvmlReturn_t fake_gate(const char *function, nvmlDevice_t device) {
    if (!fake_read_config()) return NVML_ERROR_UNINITIALIZED;
    while (concerns(config_text("hang"), function)) rest();
    unsigned long long error = config_count("error", 0);
    if (error) return (nvmlReturn_t)error;
    if (config_count("generation", 1) != loaded_generation) return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    if (!initialized) return NVML_ERROR_UNINITIALIZED;
    if (!device) return NVML_SUCCESS;
    char key[128];
    snprintf(key, sizeof key, "gpu.%d.hang", device->gpu);
    while (concerns(config_text(key), function)) rest();
    snprintf(key, sizeof key, "gpu.%d.crash", device->gpu);
    if (concerns(config_text(key), function)) raise(SIGSEGV);
    snprintf(key, sizeof key, "gpu.%d.slow_ms", device->gpu);
    unsigned long long ms = config_count(key, 0);
    if (ms) nanosleep(&(struct timespec){(time_t)(ms / 1000), (long)(ms % 1000) * 1000000}, NULL);
    snprintf(key, sizeof key, "gpu.%d.lost", device->gpu);
    if (config_count(key, 0)) return NVML_ERROR_GPU_IS_LOST;
    snprintf(key, sizeof key, "gpu.%d.error.%s", device->gpu, function);
    return (nvmlReturn_t)config_count(key, 0);
}
