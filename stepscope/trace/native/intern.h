/* Interning of byte strings (runs): numbers in order of first appearance, each run is stored once. A hash table with
 * open addressing and linear probing, at most half full. */
#ifndef STEPSCOPE_INTERN_H
#define STEPSCOPE_INTERN_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const uint8_t *at; /* NULL: not recorded */
    size_t size;
} Span;

typedef struct {
    uint8_t *bytes;    /* all runs, concatenated */
    size_t used, room; /* of bytes */
    size_t *ends;      /* where each run ends in bytes */
    uint32_t *slots;   /* open addressing: number + 1, or 0 where free */
    size_t count, num_slots;
} Interned;

/* The run's number, new or known; -1 without memory (the table is unchanged). */
int64_t intern(Interned *table, Span run);

/* The number of a known run; -1 for others. */
int64_t intern_find(const Interned *table, Span run);

/* Forget the runs that got their numbers last, until `count` are left. */
void intern_forget(Interned *table, size_t count);

Span interned(const Interned *table, size_t number);
void intern_free(Interned *table);

#endif
