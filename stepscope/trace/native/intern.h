/* Which small number stands for a run of bytes? Runs get numbers in order of first sight; each is kept once. */
#ifndef STEPSCOPE_INTERN_H
#define STEPSCOPE_INTERN_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const uint8_t *at; /* NULL: not recorded */
    size_t size;
} Span;

typedef struct {
    uint8_t *bytes;    /* all runs, one behind the other */
    size_t used, room; /* of bytes */
    size_t *ends;      /* where each run ends in bytes */
    uint32_t *slots;   /* open addressing: number + 1, or 0 where free */
    size_t count, num_slots;
} Interned;

/* The run's number, new or known; -1 when memory is out (the table stays as it was). */
int64_t intern(Interned *table, Span run);

Span interned(const Interned *table, size_t number);
void intern_free(Interned *table);

#endif
