#include "scan.h"

#include <stdlib.h>
#include <string.h>

/* Below this float64 keeps whole nanoseconds in the Python reader; longer durations are impossible. */
static const int64_t LONGEST_US = (int64_t)1 << 43;
/* Start + duration + base time stays within int64. */
static const int64_t LATEST_US = (((int64_t)1 << 62) - ((int64_t)1 << 54)) / 1000;

enum { EVENT_DEPTH = 1, ARGUMENTS_DEPTH = 2 };

/* Fields of an event and of its arguments; 0 is a field that is not read. */
enum { PHASE = 1, START, DURATION, CATEGORY, EVENT_NAME, PROCESS, THREAD, ARGUMENTS };
enum {
    DIMS = 1, /* in the order of a row's shape texts and launch texts */
    TYPES,
    CONCRETE_INPUTS,
    GRID,
    BLOCK,
    REGISTERS,
    SHARED_MEMORY,
    ARGUMENT_CORRELATION,
    ARGUMENT_EXTERNAL_ID,
    LEGACY_EXTERNAL_ID, /* key in traces of 2021, whose categories are not supported */
    COPIED_BYTES,
    COLLECTIVE,
    WAITED_EVENT,
    MERGED_RANK /* in a file of several ranks, which Python splits */
};

typedef struct {
    const char *name;
    uint8_t field;
} Key;

static uint8_t find_key(const Key *keys, size_t count, Span key) {
    for (size_t i = 0; i < count; i++)
        if (strlen(keys[i].name) == key.size && memcmp(keys[i].name, key.at, key.size) == 0)
            return keys[i].field;
    return 0;
}

static uint8_t event_field(Span key) {
    static const Key keys[] = {
        {"ph", PHASE},
        {"ts", START},
        {"dur", DURATION},
        {"cat", CATEGORY},
        {"name", EVENT_NAME},
        {"pid", PROCESS},
        {"tid", THREAD},
        {"args", ARGUMENTS},
    };
    return find_key(keys, sizeof keys / sizeof *keys, key);
}

static uint8_t argument_field(Span key) {
    static const Key keys[] = {
        {"Input Dims", DIMS},
        {"Input type", TYPES},
        {"Concrete Inputs", CONCRETE_INPUTS},
        {"grid", GRID},
        {"block", BLOCK},
        {"registers per thread", REGISTERS},
        {"shared memory", SHARED_MEMORY},
        {"correlation", ARGUMENT_CORRELATION},
        {"External id", ARGUMENT_EXTERNAL_ID},
        {"external id", LEGACY_EXTERNAL_ID},
        {"bytes", COPIED_BYTES},
        {"Collective name", COLLECTIVE},
        {"wait_on_cuda_event_record_corr_id", WAITED_EVENT},
        {"rank", MERGED_RANK},
    };
    return find_key(keys, sizeof keys / sizeof *keys, key);
}

typedef struct {
    Scanner *scanner;
    int64_t start_ns, duration_ns, correlation, external_id, num_bytes;
    Span phase, category, name, process, thread, arguments;
    Span shapes[NUM_SHAPE_TEXTS], launch[NUM_LAUNCH_TEXTS];
    bool has_start, has_duration, has_arguments, names_another;
} Event;

static inline Place keep_value(Place p, Place end, Span *span, int depth) {
    Place behind = skip_value(p, end, depth);
    if (behind)
        *span = (Span){p, (size_t)(behind - p)};
    return behind;
}

static inline Place keep_string(Place p, Place end, Span *span, bool *plain) {
    Place behind = skip_string(p, end, plain);
    if (behind)
        *span = (Span){p, (size_t)(behind - p)};
    return behind;
}

static inline Place keep_integer(Place p, Place end, Span *span) {
    int64_t ignored;
    Place behind = read_integer(p, end, &ignored);
    if (behind)
        *span = (Span){p, (size_t)(behind - p)};
    return behind;
}

/* Ids are integers or texts. */
static inline Place keep_id(Place p, Place end, Span *span) {
    bool plain;
    return p < end && *p == '"' ? keep_string(p, end, span, &plain) : keep_integer(p, end, span);
}

static Place skip_size(Place p, Place end, int depth) {
    (void)depth;
    int64_t ignored;
    return read_integer(p, end, &ignored);
}

static Place keep_sizes(Place p, Place end, Span *span) {
    Place behind = skip_items(p, end, skip_size, ARGUMENTS_DEPTH);
    if (behind)
        *span = (Span){p, (size_t)(behind - p)};
    return behind;
}

static Place take_argument(Place p, Place end, uint8_t field, void *target) {
    Event *event = target;
    bool plain;
    Span text;
    int64_t ignored;
    switch (field) {
    case DIMS:
    case TYPES:
    case CONCRETE_INPUTS: return keep_value(p, end, &event->shapes[field - DIMS], ARGUMENTS_DEPTH);
    case GRID:
    case BLOCK: return keep_sizes(p, end, &event->launch[field - GRID]);
    case REGISTERS:
    case SHARED_MEMORY: return keep_integer(p, end, &event->launch[field - GRID]);
    case ARGUMENT_CORRELATION: return read_integer(p, end, &event->correlation);
    case ARGUMENT_EXTERNAL_ID: return read_integer(p, end, &event->external_id);
    case LEGACY_EXTERNAL_ID: return read_integer(p, end, &ignored);
    case COPIED_BYTES: return read_count(p, end, &event->num_bytes);
    case COLLECTIVE: event->names_another = true; return keep_string(p, end, &text, &plain);
    case WAITED_EVENT: event->names_another = true; return skip_value(p, end, ARGUMENTS_DEPTH);
    case MERGED_RANK: return NULL;
    default: return skip_value(p, end, ARGUMENTS_DEPTH);
    }
}

static void forget_arguments(Event *event) {
    event->correlation = event->external_id = event->num_bytes = -1;
    memset(event->shapes, 0, sizeof event->shapes);
    memset(event->launch, 0, sizeof event->launch);
    event->names_another = false;
}

static Place take_arguments(Place p, Place end, Event *event) {
    if (event->has_arguments)
        forget_arguments(event); /* the last of repeated keys wins */
    event->has_arguments = true;
    Place behind = members(&event->scanner->argument_layout, p, end, take_argument, event);
    if (behind)
        event->arguments = (Span){p, (size_t)(behind - p)};
    return behind;
}

static Place take_field(Place p, Place end, uint8_t field, void *target) {
    Event *event = target;
    bool plain = true;
    Place behind;
    switch (field) {
    case PHASE: behind = keep_string(p, end, &event->phase, &plain); return plain && event->phase.size > 2 ? behind : NULL;
    case START: event->has_start = true; return read_time(p, end, LATEST_US, &event->start_ns);
    case DURATION:
        event->has_duration = true;
        return p < end && *p == '-' ? NULL : read_time(p, end, LONGEST_US, &event->duration_ns);
    case CATEGORY: behind = keep_string(p, end, &event->category, &plain); return plain ? behind : NULL;
    case EVENT_NAME: return keep_string(p, end, &event->name, &plain);
    case PROCESS: return keep_id(p, end, &event->process);
    case THREAD: return keep_id(p, end, &event->thread);
    case ARGUMENTS: return take_arguments(p, end, event);
    default: return skip_value(p, end, EVENT_DEPTH);
    }
}

static inline bool is_same(Span one, Span other) {
    return one.size == other.size && (!one.size || memcmp(one.at, other.at, one.size) == 0);
}

static uint8_t reads_of(Scanner *scanner, Span category) {
    if (!category.at)
        return 0;
    if (!is_same(category, scanner->last_category)) {
        int64_t number = intern_find(&scanner->categories, category);
        scanner->last_category = category;
        scanner->last_reads = number < 0 ? 0 : scanner->reads[number];
    }
    return scanner->last_reads;
}

/* Bits of a Python frame, by the first known prefix of its name; others are read. */
static uint8_t reads_of_frame(const Scanner *scanner, Span name) {
    if (!name.size || name.at[0] != '"')
        return IGNORED;
    for (size_t i = 0; i < scanner->num_frame_prefixes; i++) {
        Span prefix = scanner->frame_prefixes[i];
        size_t compared = name.size < prefix.size ? name.size : prefix.size;
        if (memchr(name.at, '\\', compared))
            return UNSUPPORTED; /* an escape may hide the prefix */
        if (compared == prefix.size && memcmp(name.at, prefix.at, compared) == 0)
            return i < scanner->num_read_prefixes ? 0 : IGNORED;
    }
    return 0;
}

/* Intern several texts as one, joined by zeros, which JSON never holds. */
static int64_t intern_joined(Scanner *scanner, Interned *table, const Span *parts, int num_parts) {
    size_t size = (size_t)num_parts, used = 0;
    for (int i = 0; i < num_parts; i++)
        size += parts[i].size;
    if (size > scanner->joined_room) {
        uint8_t *joined = realloc(scanner->joined, size * 2);
        if (!joined)
            return -1;
        scanner->joined = joined;
        scanner->joined_room = size * 2;
    }
    for (int i = 0; i < num_parts; i++) {
        if (i)
            scanner->joined[used++] = 0;
        if (parts[i].size)
            memcpy(scanner->joined + used, parts[i].at, parts[i].size);
        used += parts[i].size;
    }
    return intern(table, (Span){scanner->joined, used});
}

/* Intern texts that may be missing; -1 when all are. */
static int number_recorded(Scanner *scanner, Interned *table, const Span *parts, int num_parts, int64_t *number) {
    *number = -1;
    for (int i = 0; i < num_parts; i++)
        if (parts[i].at)
            return (*number = intern_joined(scanner, table, parts, num_parts)) < 0 ? NO_MEMORY : SCANNED;
    return SCANNED;
}

static int64_t track_of(Scanner *scanner, const Event *event) {
    const Span ran_on[NUM_TRACK_TEXTS] = {event->category, event->process, event->thread};
    const Span *last = scanner->last_track;
    if (scanner->last_track_number < 0 || !is_same(ran_on[0], last[0]) || !is_same(ran_on[1], last[1])
        || !is_same(ran_on[2], last[2])) {
        memcpy(scanner->last_track, ran_on, sizeof ran_on);
        scanner->last_track_number = intern_joined(scanner, &scanner->tracks, ran_on, NUM_TRACK_TEXTS);
    }
    return scanner->last_track_number;
}

static int64_t *append(Integers *integers, size_t count) {
    if (integers->room - integers->count < count) {
        size_t room = integers->room * 2 + 1024 * count;
        int64_t *cells = realloc(integers->cells, room * sizeof *cells);
        if (!cells)
            return NULL;
        integers->cells = cells;
        integers->room = room;
    }
    integers->count += count;
    return integers->cells + integers->count - count;
}

static int write_row(Scanner *scanner, const Event *event, uint8_t reads, Place text) {
    int64_t *cell = append(&scanner->rows, NUM_COLUMNS);
    if (!cell)
        return NO_MEMORY;
    cell[TRACK] = track_of(scanner, event);
    cell[NAME] = intern(&scanner->names, event->name);
    cell[START_NS] = event->start_ns;
    cell[DURATION_NS] = event->duration_ns;
    cell[CORRELATION] = event->correlation;
    cell[EXTERNAL_ID] = event->external_id;
    cell[SHAPES] = cell[LAUNCH] = -1;
    cell[NUM_BYTES] = reads & READS_BYTES ? event->num_bytes : -1;
    if (cell[TRACK] < 0 || cell[NAME] < 0)
        return NO_MEMORY;
    if ((reads & READS_SHAPES)
        && number_recorded(scanner, &scanner->shapes, event->shapes, NUM_SHAPE_TEXTS, &cell[SHAPES]) != SCANNED)
        return NO_MEMORY;
    if ((reads & READS_LAUNCH)
        && number_recorded(scanner, &scanner->launches, event->launch, NUM_LAUNCH_TEXTS, &cell[LAUNCH]) != SCANNED)
        return NO_MEMORY;
    if (event->names_another && (reads & READS_NAMED)) {
        int64_t *call = append(&scanner->calls, 3);
        if (!call)
            return NO_MEMORY;
        call[0] = (int64_t)scanner->num_rows;
        call[1] = event->arguments.at - text;
        call[2] = event->arguments.at - text + (int64_t)event->arguments.size;
    }
    scanner->num_rows++;
    return SCANNED;
}

/* Write a row if the event is a complete one that is read; REFUSED when Python has to read it. */
static int judge(Scanner *scanner, const Event *event, Place text) {
    if (!event->phase.at)
        return REFUSED;
    if (event->phase.size != 3 || event->phase.at[1] != 'X')
        return SCANNED;
    uint8_t reads = reads_of(scanner, event->category);
    if (reads & IGNORED_BY_NAME)
        reads = reads_of_frame(scanner, event->name);
    if (reads & UNSUPPORTED)
        return REFUSED;
    if (reads & IGNORED)
        return SCANNED;
    if (!event->has_start || !event->has_duration)
        return REFUSED;
    if ((reads & ON_DEVICE) && event->start_ns == 0 && event->duration_ns == 0)
        return REFUSED;
    return write_row(scanner, event, reads, text);
}

static int scan_events(Scanner *scanner, Place text, Place end) {
    for (Place p = text;;) {
        Event event = {.scanner = scanner, .correlation = -1, .external_id = -1, .num_bytes = -1};
        if (!(p = members(&scanner->event_layout, skip_space(p, end), end, take_field, &event)))
            return REFUSED;
        int status = judge(scanner, &event, text);
        if (status != SCANNED)
            return status;
        scanner->num_events++;
        p = skip_space(p, end);
        if (p == end)
            return SCANNED;
        if (*p++ != ',')
            return REFUSED;
    }
}

int scan(Scanner *scanner, const uint8_t *text, size_t size) {
    Interned *tables[] = {&scanner->tracks, &scanner->names, &scanner->shapes, &scanner->launches};
    enum { NUM_TABLES = sizeof tables / sizeof *tables };
    size_t counts[NUM_TABLES];
    for (int i = 0; i < NUM_TABLES; i++)
        counts[i] = tables[i]->count;
    scanner->num_rows = scanner->num_events = scanner->rows.count = scanner->calls.count = 0;
    scanner->last_track_number = -1;
    scanner->last_category = (Span){NULL, 0};
    int status = scan_events(scanner, text, text + size);
    for (int i = 0; status != SCANNED && i < NUM_TABLES; i++)
        intern_forget(tables[i], counts[i]);
    return status;
}

int scanner_width(const Scanner *scanner, int column) {
    int64_t low = 0, high = 0;
    if (column == START_NS)
        return 8;
    for (size_t at = (size_t)column; at < scanner->rows.count; at += NUM_COLUMNS) {
        int64_t value = scanner->rows.cells[at];
        low = value < low ? value : low;
        high = value > high ? value : high;
    }
    return low >= INT8_MIN && high <= INT8_MAX     ? 1
           : low >= INT16_MIN && high <= INT16_MAX ? 2
           : low >= INT32_MIN && high <= INT32_MAX ? 4
                                                   : 8;
}

#define WRITE_AS(type) \
    for (size_t row = 0; row < scanner->num_rows; row++) \
        ((type *)to)[row] = (type)scanner->rows.cells[row * NUM_COLUMNS + (size_t)column];

void scanner_write(const Scanner *scanner, int column, int width, void *to) {
    switch (width) {
    case 1: WRITE_AS(int8_t) break;
    case 2: WRITE_AS(int16_t) break;
    case 4: WRITE_AS(int32_t) break;
    default: WRITE_AS(int64_t) break;
    }
}

void scanner_set_up(Scanner *scanner) {
    layout_init(&scanner->event_layout, event_field);
    layout_init(&scanner->argument_layout, argument_field);
}

int scanner_add_category(Scanner *scanner, Span name, uint8_t reads) {
    size_t known = scanner->categories.count;
    uint8_t *all = realloc(scanner->reads, known + 1);
    if (!all)
        return NO_MEMORY;
    scanner->reads = all;
    int64_t number = intern(&scanner->categories, name);
    if (number < 0)
        return NO_MEMORY;
    scanner->reads[number] = reads;
    return SCANNED;
}

void scanner_free(Scanner *scanner) {
    intern_free(&scanner->categories);
    intern_free(&scanner->tracks);
    intern_free(&scanner->names);
    intern_free(&scanner->shapes);
    intern_free(&scanner->launches);
    free(scanner->reads);
    free(scanner->rows.cells);
    free(scanner->calls.cells);
    free(scanner->joined);
    memset(scanner, 0, sizeof *scanner);
}
