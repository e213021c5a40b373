#include "scan.h"

#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__ /* every x86-64; elsewhere the same goes byte by byte */
#include <emmintrin.h>
#endif

/* Every parsing function takes the place where its value begins and returns the place behind it, or NULL: refused. */
typedef const uint8_t *Place;

enum { MOST_NESTING = 64, MOST_DIGITS = 18 };

/* The reader in Python keeps whole nanoseconds of float64 below this; longer durations are impossible. */
static const int64_t LONGEST_US = (int64_t)1 << 43;
/* Start, duration and base time add up within int64. */
static const int64_t LATEST_US = (((int64_t)1 << 62) - ((int64_t)1 << 54)) / 1000;

static inline bool is_space(uint8_t byte) {
    return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

static inline Place skip_space(Place p, Place end) {
    if (p < end && *p > ' ')
        return p;
    if (end - p > 1 && *p == ' ' && p[1] > ' ')
        return p + 1;
#ifdef __SSE2__
    for (; end - p >= 16; p += 16) {
        __m128i text = _mm_loadu_si128((const __m128i *)p);
        __m128i blank = _mm_or_si128(_mm_cmpeq_epi8(text, _mm_set1_epi8(' ')), _mm_cmpeq_epi8(text, _mm_set1_epi8('\n')));
        unsigned others = (unsigned)_mm_movemask_epi8(blank) ^ 0xffff;
        if (others) {
            p += __builtin_ctz(others);
            break;
        }
    }
#endif
    while (p < end && is_space(*p))
        p++;
    return p;
}

static inline bool is_digit(Place p, Place end) {
    return p < end && *p >= '0' && *p <= '9';
}

/* One character of two to four bytes, by the table of well-formed UTF-8 in the Unicode standard. */
static Place skip_wide_character(Place p, Place end) {
    uint8_t lead = *p, low = 0x80, high = 0xbf;
    int following = lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
    if (lead < 0xc2 || lead > 0xf4 || end - p <= following)
        return NULL;
    if (lead == 0xe0)
        low = 0xa0;
    else if (lead == 0xed)
        high = 0x9f;
    else if (lead == 0xf0)
        low = 0x90;
    else if (lead == 0xf4)
        high = 0x8f;
    if (p[1] < low || p[1] > high)
        return NULL;
    for (int i = 2; i <= following; i++)
        if ((p[i] & 0xc0) != 0x80)
            return NULL;
    return p + following + 1;
}

static Place skip_escape(Place p, Place end) {
    if (end - p < 2)
        return NULL;
    if (p[1] != 'u')
        return strchr("\"\\/bfnrt", p[1]) && p[1] ? p + 2 : NULL;
    if (end - p < 6)
        return NULL;
    for (int i = 2; i < 6; i++)
        if (!((p[i] >= '0' && p[i] <= '9') || ((p[i] | 32) >= 'a' && (p[i] | 32) <= 'f')))
            return NULL;
    if ((p[2] | 32) == 'd' && p[3] >= '8')
        return NULL; /* half of a surrogate pair: rare, and not always right */
    return p + 6;
}

/* To the next byte of a string that needs a look: quote, backslash, control or part of a wide character. */
static inline Place skip_plain(Place p, Place end) {
#ifdef __SSE2__
    for (; end - p >= 16; p += 16) {
        __m128i text = _mm_loadu_si128((const __m128i *)p);
        __m128i special = _mm_cmplt_epi8(text, _mm_set1_epi8(0x20)); /* signed: wide characters are below, too */
        special = _mm_or_si128(special, _mm_cmpeq_epi8(text, _mm_set1_epi8('"')));
        special = _mm_or_si128(special, _mm_cmpeq_epi8(text, _mm_set1_epi8('\\')));
        unsigned found = (unsigned)_mm_movemask_epi8(special);
        if (found)
            return p + __builtin_ctz(found);
    }
#endif
    while (p < end && *p >= 0x20 && *p < 0x80 && *p != '"' && *p != '\\')
        p++;
    return p;
}

/* A string from its opening quote; `plain` tells whether it holds no escapes. */
static inline Place skip_string(Place p, Place end, bool *plain) {
    *plain = true;
    if (p >= end || *p++ != '"')
        return NULL;
    for (;;) {
        p = skip_plain(p, end);
        if (p >= end || *p < 0x20)
            return NULL;
        if (*p == '"')
            return p + 1;
        if (*p == '\\') {
            *plain = false;
            p = skip_escape(p, end);
        } else {
            p = skip_wide_character(p, end);
        }
        if (!p)
            return NULL;
    }
}

static Place skip_digits(Place p, Place end) {
    if (!is_digit(p, end))
        return NULL;
    while (is_digit(p, end))
        p++;
    return p;
}

static Place skip_number(Place p, Place end) {
    if (p < end && *p == '-')
        p++;
    bool leads_with_zero = p < end && *p == '0';
    Place first = p;
    if (!(p = skip_digits(p, end)) || (leads_with_zero && p - first > 1))
        return NULL;
    if (p < end && *p == '.' && !(p = skip_digits(p + 1, end)))
        return NULL;
    if (p < end && (*p | 32) == 'e') {
        p++;
        if (p < end && (*p == '-' || *p == '+'))
            p++;
        Place exponent = p;
        if (!(p = skip_digits(p, end)) || p - exponent > 2)
            return NULL;
    }
    return p;
}

static Place skip_word(Place p, Place end, const char *word, ptrdiff_t size) {
    return end - p >= size && memcmp(p, word, (size_t)size) == 0 ? p + size : NULL;
}

typedef Place Visit(Place value, Place end, Span key, void *target, int depth);

static Place skip_value(Place p, Place end, int depth);

/* An object from its brace: `visit` takes each member's value. Keys that hold escapes are refused: known ones might
 * be written so. */
static inline Place members(Place p, Place end, Visit *visit, void *target, int depth) {
    if (p >= end || *p != '{')
        return NULL;
    p = skip_space(p + 1, end);
    if (p < end && *p == '}')
        return p + 1;
    for (;;) {
        bool plain;
        Place key = p;
        if (!(p = skip_string(p, end, &plain)) || !plain)
            return NULL;
        Span name = {key + 1, (size_t)(p - key) - 2};
        p = skip_space(p, end);
        if (p >= end || *p != ':')
            return NULL;
        if (!(p = visit(skip_space(p + 1, end), end, name, target, depth)))
            return NULL;
        p = skip_space(p, end);
        if (p >= end || (*p != ',' && *p != '}'))
            return NULL;
        if (*p++ == '}')
            return p;
        p = skip_space(p, end);
    }
}

static inline Place items(Place p, Place end, Visit *visit, void *target, int depth) {
    if (p >= end || *p != '[')
        return NULL;
    p = skip_space(p + 1, end);
    if (p < end && *p == ']')
        return p + 1;
    for (;;) {
        if (!(p = visit(p, end, (Span){0}, target, depth)))
            return NULL;
        p = skip_space(p, end);
        if (p >= end || (*p != ',' && *p != ']'))
            return NULL;
        if (*p++ == ']')
            return p;
        p = skip_space(p, end);
    }
}

static Place visit_ignored(Place p, Place end, Span key, void *target, int depth) {
    (void)key, (void)target;
    return skip_value(p, end, depth);
}

static Place skip_value(Place p, Place end, int depth) {
    bool plain;
    if (p >= end || depth >= MOST_NESTING)
        return NULL;
    switch (*p) {
    case '"': return skip_string(p, end, &plain);
    case '{': return members(p, end, visit_ignored, NULL, depth + 1);
    case '[': return items(p, end, visit_ignored, NULL, depth + 1);
    case 't': return skip_word(p, end, "true", 4);
    case 'f': return skip_word(p, end, "false", 5);
    case 'n': return skip_word(p, end, "null", 4);
    default: return skip_number(p, end);
    }
}

/* Digits without sign; at most 18 and no needless zero before them. */
static inline Place read_digits(Place p, Place end, int64_t *value) {
    Place first = p;
    int64_t number = 0;
    while (is_digit(p, end) && p - first <= MOST_DIGITS)
        number = number * 10 + (*p++ - '0');
    if (p == first || p - first > MOST_DIGITS || (*first == '0' && p - first > 1))
        return NULL;
    *value = number;
    return p;
}

static inline Place read_integer(Place p, Place end, int64_t *value) {
    bool is_negative = p < end && *p == '-';
    p = read_digits(p + is_negative, end, value);
    if (!p || (p < end && (*p == '.' || (*p | 32) == 'e')))
        return NULL;
    if (is_negative)
        *value = -*value;
    return p;
}

/* ROCm writes the size of a copy in quotes. */
static Place read_count(Place p, Place end, int64_t *value) {
    if (p >= end || *p != '"')
        return read_integer(p, end, value);
    p = read_digits(p + 1, end, value);
    return p && p < end && *p == '"' ? p + 1 : NULL;
}

/* Microseconds with at most three decimals, as nanoseconds: those need no rounding. */
static Place read_time(Place p, Place end, int64_t most_us, int64_t *ns) {
    static const int64_t scale[] = {1000, 100, 10, 1};
    bool is_negative = p < end && *p == '-';
    int64_t whole, fraction = 0;
    int decimals = 0;
    if (!(p = read_digits(p + is_negative, end, &whole)) || whole >= most_us)
        return NULL;
    if (p < end && *p == '.') {
        for (p++; is_digit(p, end) && decimals < 3; decimals++)
            fraction = fraction * 10 + (*p++ - '0');
        if (decimals == 0)
            return NULL;
    }
    if (p < end && (is_digit(p, end) || *p == '.' || (*p | 32) == 'e'))
        return NULL;
    *ns = whole * 1000 + fraction * scale[decimals];
    if (is_negative)
        *ns = -*ns;
    return p;
}

static inline bool is_key(Span key, const char *name) {
    size_t size = strlen(name);
    return key.size == size && memcmp(key.at, name, size) == 0;
}

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

static Place visit_size(Place p, Place end, Span key, void *target, int depth) {
    (void)key, (void)target, (void)depth;
    int64_t ignored;
    return read_integer(p, end, &ignored);
}

static Place keep_sizes(Place p, Place end, Span *span, int depth) {
    Place behind = items(p, end, visit_size, NULL, depth + 1);
    if (behind)
        *span = (Span){p, (size_t)(behind - p)};
    return behind;
}

static Place visit_argument(Place p, Place end, Span key, void *target, int depth) {
    Row *row = target;
    bool plain;
    Span text;
    int64_t ignored;
    switch (key.size) {
    case 4:
        if (is_key(key, "grid"))
            return keep_sizes(p, end, &row->launch[0], depth);
        if (is_key(key, "rank")) /* a file of several ranks, which Python tells apart */
            return NULL;
        break;
    case 5:
        if (is_key(key, "block"))
            return keep_sizes(p, end, &row->launch[1], depth);
        if (is_key(key, "bytes"))
            return read_count(p, end, &row->num_bytes);
        break;
    case 10:
        if (is_key(key, "Input Dims"))
            return keep_value(p, end, &row->shapes[0], depth);
        if (is_key(key, "Input type"))
            return keep_value(p, end, &row->shapes[1], depth);
        break;
    case 11:
        if (is_key(key, "External id"))
            return read_integer(p, end, &row->external_id);
        if (is_key(key, "correlation"))
            return read_integer(p, end, &row->correlation);
        if (is_key(key, "external id")) /* as traces of 2021 wrote it, whose categories are not supported */
            return read_integer(p, end, &ignored);
        break;
    case 13:
        if (is_key(key, "shared memory"))
            return keep_integer(p, end, &row->launch[3]);
        break;
    case 15:
        if (is_key(key, "Concrete Inputs"))
            return keep_value(p, end, &row->shapes[2], depth);
        if (is_key(key, "Collective name")) {
            row->names_collective = true;
            return keep_string(p, end, &text, &plain);
        }
        break;
    case 20:
        if (is_key(key, "registers per thread"))
            return keep_integer(p, end, &row->launch[2]);
        break;
    default: break;
    }
    return skip_value(p, end, depth);
}

static void forget_arguments(Row *row) {
    row->correlation = row->external_id = row->num_bytes = -1;
    memset(row->shapes, 0, sizeof row->shapes);
    memset(row->launch, 0, sizeof row->launch);
    row->names_collective = false;
}

typedef struct {
    Row *row;
    Span phase;
    bool has_start, has_duration, has_arguments;
} Entry;

static Place visit_field(Place p, Place end, Span key, void *target, int depth) {
    Entry *entry = target;
    Row *row = entry->row;
    bool plain = true;
    Place behind = NULL;
    switch (key.size) {
    case 2:
        if (is_key(key, "ph")) {
            behind = keep_string(p, end, &entry->phase, &plain);
            return plain && entry->phase.size > 2 ? behind : NULL;
        }
        if (is_key(key, "ts")) {
            entry->has_start = true;
            return read_time(p, end, LATEST_US, &row->start_ns);
        }
        break;
    case 3:
        if (is_key(key, "pid"))
            return keep_id(p, end, &row->process);
        if (is_key(key, "tid"))
            return keep_id(p, end, &row->thread);
        if (is_key(key, "cat")) {
            behind = keep_string(p, end, &row->category, &plain);
            return plain ? behind : NULL;
        }
        if (is_key(key, "dur")) {
            entry->has_duration = true;
            return p < end && *p == '-' ? NULL : read_time(p, end, LONGEST_US, &row->duration_ns);
        }
        break;
    case 4:
        if (is_key(key, "name"))
            return keep_string(p, end, &row->name, &plain);
        if (is_key(key, "args")) {
            if (entry->has_arguments)
                forget_arguments(row); /* the second one counts */
            entry->has_arguments = true;
            behind = members(p, end, visit_argument, row, depth + 1);
            if (behind)
                row->arguments = (Span){p, (size_t)(behind - p)};
            return behind;
        }
        break;
    default: break;
    }
    return skip_value(p, end, depth);
}

static uint8_t reads_of(const Scanner *scanner, Span category) {
    for (size_t number = 0; category.at && number < scanner->categories.count; number++) {
        Span known = interned(&scanner->categories, number);
        if (known.size == category.size && memcmp(known.at, category.at, known.size) == 0)
            return scanner->reads[number];
    }
    return 0;
}

/* What a frame of Python is read for: only modules are. */
static uint8_t reads_of_frame(const Scanner *scanner, Span name) {
    Span prefix = scanner->module_prefix;
    size_t compared = name.size < prefix.size ? name.size : prefix.size;
    if (compared && memchr(name.at, '\\', compared))
        return UNSUPPORTED; /* an escape may hide the prefix */
    return compared == prefix.size && memcmp(name.at, prefix.at, compared) == 0 ? 0 : IGNORED;
}

/* Keep the entry as a row if it is a complete event that is read; REFUSED when Python should see it. */
static int judge(Scanner *scanner, const Entry *entry) {
    Row *row = entry->row;
    if (!entry->phase.at)
        return REFUSED;
    if (entry->phase.size != 3 || entry->phase.at[1] != 'X')
        return SCANNED;
    row->reads = reads_of(scanner, row->category);
    if (row->reads & IGNORED_BUT_MODULES)
        row->reads = reads_of_frame(scanner, row->name);
    if (row->reads & UNSUPPORTED)
        return REFUSED;
    if (row->reads & IGNORED)
        return SCANNED;
    if (!entry->has_start || !entry->has_duration)
        return REFUSED;
    if ((row->reads & ON_DEVICE) && row->start_ns == 0 && row->duration_ns == 0)
        return REFUSED;
    row->names_collective = row->names_collective && (row->reads & READS_COLLECTIVE);
    scanner->num_calls += row->names_collective;
    scanner->num_rows++;
    return SCANNED;
}

static int make_room(Scanner *scanner) {
    if (scanner->num_rows < scanner->rows_room)
        return SCANNED;
    size_t room = scanner->rows_room ? scanner->rows_room * 2 : 1024;
    Row *rows = realloc(scanner->rows, room * sizeof *rows);
    if (!rows)
        return NO_MEMORY;
    scanner->rows = rows;
    scanner->rows_room = room;
    return SCANNED;
}

int scan(Scanner *scanner, const uint8_t *text, size_t size) {
    Place p = text, end = text + size;
    scanner->num_rows = scanner->num_events = scanner->num_calls = 0;
    for (;;) {
        if (make_room(scanner) != SCANNED)
            return NO_MEMORY;
        Entry entry = {.row = &scanner->rows[scanner->num_rows]};
        entry.row->category = entry.row->name = entry.row->process = entry.row->thread = (Span){0};
        forget_arguments(entry.row);
        p = members(skip_space(p, end), end, visit_field, &entry, 1);
        if (!p || judge(scanner, &entry) != SCANNED)
            return REFUSED;
        scanner->num_events++;
        p = skip_space(p, end);
        if (p == end)
            return SCANNED;
        if (*p++ != ',')
            return REFUSED;
    }
}

/* Number some texts as one; zeros, which JSON never holds, stand between them. */
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

/* The same for texts that may not be recorded: -1 when none is. */
static int number_recorded(Scanner *scanner, Interned *table, const Span *parts, int num_parts, int64_t *number) {
    *number = -1;
    for (int i = 0; i < num_parts; i++)
        if (parts[i].at)
            return (*number = intern_joined(scanner, table, parts, num_parts)) < 0 ? NO_MEMORY : SCANNED;
    return SCANNED;
}

int scanner_write(Scanner *scanner, const uint8_t *text, int64_t *columns, int64_t *calls) {
    size_t count = scanner->num_rows;
    for (size_t i = 0; i < count; i++) {
        const Row *row = &scanner->rows[i];
        const Span ran_on[NUM_TRACK_TEXTS] = {row->category, row->process, row->thread};
        int64_t *cell = columns + i, shapes = -1, launch = -1;
        int64_t track = intern_joined(scanner, &scanner->tracks, ran_on, NUM_TRACK_TEXTS);
        int64_t name = intern(&scanner->names, row->name);
        if (track < 0 || name < 0)
            return NO_MEMORY;
        if ((row->reads & READS_SHAPES)
            && number_recorded(scanner, &scanner->shapes, row->shapes, NUM_SHAPE_TEXTS, &shapes) != SCANNED)
            return NO_MEMORY;
        if ((row->reads & READS_LAUNCH)
            && number_recorded(scanner, &scanner->launches, row->launch, NUM_LAUNCH_TEXTS, &launch) != SCANNED)
            return NO_MEMORY;
        cell[TRACK * count] = track;
        cell[NAME * count] = name;
        cell[START_NS * count] = row->start_ns;
        cell[DURATION_NS * count] = row->duration_ns;
        cell[CORRELATION * count] = row->correlation;
        cell[EXTERNAL_ID * count] = row->external_id;
        cell[SHAPES * count] = shapes;
        cell[LAUNCH * count] = launch;
        cell[NUM_BYTES * count] = row->reads & READS_BYTES ? row->num_bytes : -1;
        if (row->names_collective) {
            *calls++ = (int64_t)i;
            *calls++ = row->arguments.at - text;
            *calls++ = row->arguments.at - text + (int64_t)row->arguments.size;
        }
    }
    return SCANNED;
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
    free(scanner->rows);
    free(scanner->joined);
    memset(scanner, 0, sizeof *scanner);
}
