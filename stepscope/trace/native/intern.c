#include "intern.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_SLOTS = 1024, FIRST_BYTES = 16384 };

static uint64_t hash_of(Span run) {
    const uint64_t odd = 0x9e3779b97f4a7c15u;
    const uint8_t *at = run.at;
    size_t left = run.size;
    uint64_t hash = run.size * odd, word = 0;
    for (; left >= 8; at += 8, left -= 8) {
        memcpy(&word, at, 8);
        hash = (hash ^ word) * odd;
        hash ^= hash >> 29;
    }
    word = 0;
    if (left)
        memcpy(&word, at, left);
    hash = (hash ^ word) * odd;
    return hash ^ (hash >> 32);
}

Span interned(const Interned *table, size_t number) {
    size_t start = number ? table->ends[number - 1] : 0;
    return (Span){table->bytes + start, table->ends[number] - start};
}

/* Double the number of slots and ends. */
static int grow(Interned *table) {
    size_t num_slots = table->num_slots ? table->num_slots * 2 : FIRST_SLOTS;
    if (num_slots > UINT32_MAX)
        return -1;
    size_t *ends = realloc(table->ends, num_slots / 2 * sizeof *ends);
    if (!ends)
        return -1;
    table->ends = ends;
    uint32_t *slots = calloc(num_slots, sizeof *slots);
    if (!slots)
        return -1;
    for (size_t number = 0; number < table->count; number++) {
        size_t slot = hash_of(interned(table, number)) & (num_slots - 1);
        while (slots[slot])
            slot = (slot + 1) & (num_slots - 1);
        slots[slot] = (uint32_t)number + 1;
    }
    free(table->slots);
    table->slots = slots;
    table->num_slots = num_slots;
    return 0;
}

/* The run's slot, or the free one for it. */
static size_t slot_of(const Interned *table, Span run) {
    size_t slot = hash_of(run) & (table->num_slots - 1);
    for (; table->slots[slot]; slot = (slot + 1) & (table->num_slots - 1)) {
        Span known = interned(table, table->slots[slot] - 1);
        if (known.size == run.size && (!run.size || memcmp(known.at, run.at, run.size) == 0))
            break;
    }
    return slot;
}

int64_t intern_find(const Interned *table, Span run) {
    return table->count ? (int64_t)table->slots[slot_of(table, run)] - 1 : -1;
}

int64_t intern(Interned *table, Span run) {
    if (table->count >= table->num_slots / 2 && grow(table) < 0)
        return -1;
    size_t slot = slot_of(table, run);
    if (table->slots[slot])
        return (int64_t)table->slots[slot] - 1;
    if (table->room - table->used < run.size) {
        size_t room = (table->room ? table->room * 2 : FIRST_BYTES) + run.size;
        uint8_t *bytes = realloc(table->bytes, room);
        if (!bytes)
            return -1;
        table->bytes = bytes;
        table->room = room;
    }
    if (run.size)
        memcpy(table->bytes + table->used, run.at, run.size);
    table->used += run.size;
    table->ends[table->count] = table->used;
    table->slots[slot] = (uint32_t)++table->count;
    return (int64_t)table->count - 1;
}

void intern_forget(Interned *table, size_t count) {
    for (; table->count > count; table->count--) /* newest first: no older run was probed past its slot */
        table->slots[slot_of(table, interned(table, table->count - 1))] = 0;
    table->used = count ? table->ends[count - 1] : 0;
}

void intern_free(Interned *table) {
    free(table->bytes);
    free(table->ends);
    free(table->slots);
    memset(table, 0, sizeof *table);
}
