/* Prediction of the next member of an object. A profiler writes the members of its events in few orders and always with
 * the same text between two values (`,\n    "ts": `). So the texts that followed the same text before are compared
 * first, as a whole; only new text is parsed as JSON, and remembered. */
#ifndef STEPSCOPE_LAYOUT_H
#define STEPSCOPE_LAYOUT_H

#include "intern.h"
#include "json.h"

enum { RUN_BYTES = 32, MOST_RUNS = 200, NUM_FOLLOWERS = 4 };

enum { OBJECT_END = 255 }; /* field of the brace that closes the object; 0 is a member that is not read */

/* Text from the end of a value, or of the opening brace, to the next value or the end of the closing brace. */
typedef struct {
    uint8_t text[RUN_BYTES];
    uint8_t size, field;
    uint8_t followers[NUM_FOLLOWERS]; /* runs that came behind the next value, roughly the most frequent first */
} Run;

typedef uint8_t FieldOf(Span key);

typedef struct {
    FieldOf *field_of;
    Run runs[MOST_RUNS];
    size_t count;
} Layout;

/* Runs without text: no text begins with them. */
enum { OPENING_BRACE, ANY_VALUE, NUM_SPECIAL_RUNS, NO_TEXT = 63 };

void layout_init(Layout *layout, FieldOf *field_of);

/* Parse the run at p as JSON. Keys with escapes are refused: they may spell known keys.
 * `run` is the number of the previous run, and becomes this one's. */
Place layout_read(Layout *layout, Place p, Place end, uint8_t *run, uint8_t *field);

static inline bool begins_with(Place p, const Run *run) {
#ifdef __SSE2__
    __m128i first = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)p), _mm_loadu_si128((const __m128i *)run->text));
    __m128i second = _mm_cmpeq_epi8(
        _mm_loadu_si128((const __m128i *)(p + 16)), _mm_loadu_si128((const __m128i *)(run->text + 16)));
    uint64_t same = (uint64_t)(unsigned)_mm_movemask_epi8(first) | (uint64_t)(unsigned)_mm_movemask_epi8(second) << 16;
    return (~same & (((uint64_t)1 << run->size) - 1)) == 0;
#else
    return run->size <= RUN_BYTES && memcmp(p, run->text, run->size) == 0;
#endif
}

typedef Place Take(Place value, Place end, uint8_t field, void *target);

/* Read an object from its brace; `take` reads each member's value. */
static inline Place members(Layout *layout, Place p, Place end, Take *take, void *target) {
    uint8_t run = OPENING_BRACE, field;
    if (p >= end || *p++ != '{')
        return NULL;
    for (;;) {
        uint8_t *followers = layout->runs[run].followers;
        int tried = 0;
        bool is_known = false;
        for (; end - p >= RUN_BYTES && tried < NUM_FOLLOWERS && !is_known; tried++)
            is_known = begins_with(p, &layout->runs[followers[tried]]);
        if (is_known) {
            run = followers[--tried];
            field = layout->runs[run].field;
            p += layout->runs[run].size;
            if (tried) {
                followers[tried] = followers[tried - 1];
                followers[tried - 1] = run;
            }
        } else if (!(p = layout_read(layout, p, end, &run, &field))) {
            return NULL;
        }
        if (field == OBJECT_END)
            return p;
        if (p < end && *p <= ' ')
            p = skip_space(p, end);
        if (!(p = take(p, end, field, target)))
            return NULL;
    }
}

#endif
