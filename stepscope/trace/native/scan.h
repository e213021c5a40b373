/* Scanner of event text into rows of integers. Strict: text that is not certainly clean is refused as a whole and read
 * by the Python reader, which can repair it. Accepted text must give exactly the rows that the Python reader gives.
 *
 * One pass without building objects: members of an event are found by predicting the text between values (layout.h),
 * strings are interned as the bytes they are written in (intern.h), and Python decodes each distinct one once. */
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

/* Bits of what is read of a category's rows. */
enum {
    READS_SHAPES = 1,
    READS_LAUNCH = 2,
    READS_BYTES = 4,
    READS_NAMED = 8,
    ON_DEVICE = 16,  /* a row at time 0 without duration is impossible */
    IGNORED = 32,
    IGNORED_BY_NAME = 64,     /* if the name begins with one of the ignored frame_prefixes */
    UNSUPPORTED = 128         /* refuse the text */
};

enum { NUM_TRACK_TEXTS = 3, NUM_SHAPE_TEXTS = 3, NUM_LAUNCH_TEXTS = 4, MAX_FRAME_PREFIXES = 8 };

typedef struct {
    int64_t *cells;
    size_t count, room;
} Integers;

typedef struct {
    Interned categories; /* as written, with their quotes */
    uint8_t *reads;      /* of each category */
    Span frame_prefixes[MAX_FRAME_PREFIXES]; /* of names of Python frames, with the quote; owned by the caller */
    size_t num_read_prefixes, num_frame_prefixes; /* the first ones are read, the others ignored */
    Layout event_layout, argument_layout;
    Interned tracks, names, shapes, launches;
    Integers rows;       /* of the text scanned last: NUM_COLUMNS cells each */
    Integers calls;      /* of each row that names a collective or event: index, begin and end of its arguments */
    size_t num_rows;
    size_t num_events;   /* entries of all phases in it */
    Span last_track[NUM_TRACK_TEXTS]; /* of the previous row: most rows repeat it */
    int64_t last_track_number;        /* -1 without a previous row */
    Span last_category;
    uint8_t last_reads;               /* bits of that category */
    uint8_t *joined;     /* scratch */
    size_t joined_room;
} Scanner;

enum { SCANNED = 0, REFUSED = 1, NO_MEMORY = -1 };

void scanner_set_up(Scanner *scanner);

/* Set what is read of a category's rows. */
int scanner_add_category(Scanner *scanner, Span name, uint8_t reads);

/* Scan comma-separated events into rows, and intern their texts. Refused text leaves no trace. */
int scan(Scanner *scanner, const uint8_t *text, size_t size);

/* Width in bytes of the smallest integers that hold a column of the text scanned last; start times always have 8. */
int scanner_width(const Scanner *scanner, int column);

/* Write a column in integers of that width. */
void scanner_write(const Scanner *scanner, int column, int width, void *to);

void scanner_free(Scanner *scanner);

#endif
