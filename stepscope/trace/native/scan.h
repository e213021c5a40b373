/* Which events does a run of clean JSON text hold? Strict: text that is not plainly right is refused as a whole, and
 * the reader in Python, which knows how to mend, decides. What is accepted must read exactly as it would there. */
#ifndef STEPSCOPE_SCAN_H
#define STEPSCOPE_SCAN_H

#include "intern.h"

#include <stdbool.h>

/* The columns of a row, in this order. Absent integers are -1. */
enum {
    TRACK,       /* number in tracks: category, process and thread */
    NAME,        /* number in names */
    START_NS,
    DURATION_NS,
    CORRELATION,
    EXTERNAL_ID,
    SHAPES,      /* number in shapes: dims, types and concrete inputs */
    LAUNCH,      /* number in launches: grid, block, registers and shared memory */
    NUM_BYTES,
    NUM_COLUMNS
};

/* What the rows of a category are read for; bits. */
enum {
    READS_SHAPES = 1,
    READS_LAUNCH = 2,
    READS_BYTES = 4,
    READS_COLLECTIVE = 8,
    ON_DEVICE = 16,  /* a row at time 0 without duration is impossible */
    IGNORED = 32,
    IGNORED_BUT_MODULES = 64, /* unless the name begins as a module's does */
    UNSUPPORTED = 128         /* its text is refused */
};

enum { NUM_TRACK_TEXTS = 3, NUM_SHAPE_TEXTS = 3, NUM_LAUNCH_TEXTS = 4 };

typedef struct {
    int64_t start_ns, duration_ns, correlation, external_id, num_bytes;
    Span category, name, process, thread, arguments;
    Span shapes[NUM_SHAPE_TEXTS], launch[NUM_LAUNCH_TEXTS];
    bool names_collective;
    uint8_t reads;
} Row;

typedef struct {
    Interned categories; /* as written, with their quotes */
    uint8_t *reads;      /* of each category */
    Span module_prefix;  /* how the names of modules begin, with the quote; the caller keeps it */
    Interned tracks, names, shapes, launches;
    Row *rows;           /* of the text scanned last */
    size_t num_rows, rows_room;
    size_t num_events;   /* entries of all phases in it */
    size_t num_calls;    /* rows that name a collective */
    uint8_t *joined;     /* scratch */
    size_t joined_room;
} Scanner;

enum { SCANNED = 0, REFUSED = 1, NO_MEMORY = -1 };

/* Say what the rows of a category are read for. */
int scanner_add_category(Scanner *scanner, Span name, uint8_t reads);

/* Find the rows of comma-separated events. They point into the text. */
int scan(Scanner *scanner, const uint8_t *text, size_t size);

/* Number the texts of the rows just found, and write the rows column by column: NUM_COLUMNS * num_rows integers.
 * `calls` gets for each row that names a collective: its index, and begin and end of its arguments in the text. */
int scanner_write(Scanner *scanner, const uint8_t *text, int64_t *columns, int64_t *calls);

void scanner_free(Scanner *scanner);

#endif
