/* Which events does a run of clean JSON text hold? Strict: text that is not plainly right is refused as a whole, and
 * the reader in Python, which knows how to mend, decides. What is accepted must read exactly as it would there. */
#ifndef STEPSCOPE_SCAN_H
#define STEPSCOPE_SCAN_H

#include "intern.h"
#include "layout.h"

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
    READS_NAMED = 8,
    ON_DEVICE = 16,  /* a row at time 0 without duration is impossible */
    IGNORED = 32,
    IGNORED_BUT_MODULES = 64, /* unless the name begins as a module's does */
    UNSUPPORTED = 128         /* its text is refused */
};

enum { NUM_TRACK_TEXTS = 3, NUM_SHAPE_TEXTS = 3, NUM_LAUNCH_TEXTS = 4 };

typedef struct {
    int64_t *cells;
    size_t count, room;
} Integers;

typedef struct {
    Interned categories; /* as written, with their quotes */
    uint8_t *reads;      /* of each category */
    Span module_prefix;  /* how the names of modules begin, with the quote; the caller keeps it */
    Layout event_layout, argument_layout;
    Interned tracks, names, shapes, launches;
    Integers rows;       /* of the text scanned last: NUM_COLUMNS of each */
    Integers calls;      /* for each row that names a collective or an event: its index, begin and end of its arguments */
    size_t num_rows;
    size_t num_events;   /* entries of all phases in it */
    Span last_track[NUM_TRACK_TEXTS]; /* of the row before, in the text being scanned: most rows have the same */
    int64_t last_track_number;        /* -1 without such a row */
    Span last_category;
    uint8_t last_reads;               /* what rows of that category are read for */
    uint8_t *joined;     /* scratch */
    size_t joined_room;
} Scanner;

enum { SCANNED = 0, REFUSED = 1, NO_MEMORY = -1 };

void scanner_set_up(Scanner *scanner);

/* Say what the rows of a category are read for. */
int scanner_add_category(Scanner *scanner, Span name, uint8_t reads);

/* Find the rows of comma-separated events, and number their texts. Refused text leaves nothing behind. */
int scan(Scanner *scanner, const uint8_t *text, size_t size);

/* Bytes of the smallest integers that hold a column of the text scanned last; times stay wide. */
int scanner_width(const Scanner *scanner, int column);

/* Write a column in integers of that width. */
void scanner_write(const Scanner *scanner, int column, int width, void *to);

void scanner_free(Scanner *scanner);

#endif
