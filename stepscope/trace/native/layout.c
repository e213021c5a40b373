#include "layout.h"

void layout_init(Layout *layout, FieldOf *field_of) {
    memset(layout, 0, sizeof *layout);
    layout->field_of = field_of;
    layout->count = NUM_SPECIAL_RUNS;
    for (int run = 0; run < NUM_SPECIAL_RUNS; run++)
        layout->runs[run].size = NO_TEXT;
}

static uint8_t remembered(Layout *layout, Place text, size_t size, uint8_t field) {
    for (size_t run = NUM_SPECIAL_RUNS; run < layout->count; run++)
        if (layout->runs[run].size == size && memcmp(layout->runs[run].text, text, size) == 0)
            return (uint8_t)run;
    if (size > RUN_BYTES || layout->count == MOST_RUNS)
        return ANY_VALUE;
    Run *run = &layout->runs[layout->count];
    memcpy(run->text, text, size);
    run->size = (uint8_t)size;
    run->field = field;
    return (uint8_t)layout->count++;
}

Place layout_read(Layout *layout, Place p, Place end, uint8_t *run, uint8_t *field) {
    Place text = p;
    bool plain;
    p = skip_space(p, end);
    if (p < end && *p == '}') {
        *field = OBJECT_END;
        p++;
    } else {
        if (*run != OPENING_BRACE) {
            if (p >= end || *p != ',')
                return NULL;
            p = skip_space(p + 1, end);
        }
        Place key = p;
        if (!(p = skip_string(p, end, &plain)) || !plain)
            return NULL;
        *field = layout->field_of((Span){key + 1, (size_t)(p - key) - 2});
        p = skip_space(p, end);
        if (p >= end || *p != ':')
            return NULL;
        p = skip_space(p + 1, end);
    }
    uint8_t found = remembered(layout, text, (size_t)(p - text), *field);
    uint8_t *followers = layout->runs[*run].followers;
    if (found != ANY_VALUE && !memchr(followers, found, NUM_FOLLOWERS)) {
        memmove(followers + 1, followers, NUM_FOLLOWERS - 1);
        followers[0] = found;
    }
    *run = found;
    return p;
}
